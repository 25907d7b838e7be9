"""bench/one_gpu.sh starts ranks, tells them their place and ends them: all without a GPU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench/one_gpu.sh"


def one_gpu(*arguments: str, grace_s: int = 20) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), *arguments],
        env={**os.environ, "ONE_GPU_GRACE_S": str(grace_s)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_each_rank_learns_its_place_and_looks_like_a_host_of_its_own() -> None:
    shown = "$RANK $WORLD_SIZE $LOCAL_RANK $NCCL_SOCKET_IFNAME $MASTER_PORT $NCCL_HOSTID"
    done = one_gpu("3", "sh", "-c", f'echo "{shown}"; echo "problem $RANK" >&2')
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines(), key=lambda line: line.removeprefix("[rank "))
    plain = [line.split("] ")[-1].split() for line in lines]
    assert [row[:4] for row in plain] == [[str(r), "3", "0", "lo"] for r in range(3)]
    assert len({row[4] for row in plain}) == 1
    assert len({row[5] for row in plain}) == 3
    assert [line.startswith(f"[rank {r}] ") for r, line in enumerate(lines)] == [False, True, True]
    assert "[rank 2] problem 2" in done.stderr.splitlines()
    assert "problem 0" in done.stderr.splitlines()


def test_the_largest_status_of_the_ranks_is_returned() -> None:
    assert one_gpu("3", "sh", "-c", "exit $((RANK * 3))").returncode == 6


def test_a_failure_ends_ranks_that_would_wait_forever() -> None:
    # The sleepers hold the script's stdout, so the call returns only when all of them are gone.
    done = one_gpu("3", "sh", "-c", "test $RANK = 1 && exit 7; sleep 1000 & wait", grace_s=1)
    assert done.returncode == 7
    assert "killing 2 still running" in done.stderr


def test_wrong_arguments_are_refused_with_the_usage() -> None:
    for arguments in ((), ("2",), ("none", "true"), ("0", "true")):
        done = one_gpu(*arguments)
        assert done.returncode == 2
        assert "usage:" in done.stderr
