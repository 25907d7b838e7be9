"""bench/slow_link.sh: what it prints, and that nothing of it is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "bench/slow_link.sh"
SAMPLE = ROOT / "tests/data/sample_trace.npz"
ENVIRONMENT = {**os.environ, "PYTHON": sys.executable}
ENVIRONMENT.pop("GLOO_SOCKET_IFNAME", None)
ENVIRONMENT.pop("OUT", None)
SMALL = ["--ranks", "2", "--rates", "1", "-b", "64K", "-e", "64K", "-n", "2", "-w", "1"]
ENDLESS = ["--ranks", "2", "--rates", "1", "-b", "64K", "-e", "64K", "-n", "1000000"]


def why_not() -> str | None:
    """Why no rank can get a namespace here."""
    for tool in ("ip", "tc", "setpriv", "awk"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"ciera-test-{os.getpid()}"
    steps = [["ip", "netns", "add", name],
             ["tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "tbf",
              "rate", "1gbit", "burst", "32k", "latency", "1ms"]]  # fmt: skip
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True)
            if done.returncode != 0:
                return f"{' '.join(step)}: {done.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None


@pytest.fixture(scope="module")
def _network() -> None:
    pytest.importorskip("torch")
    if reason := why_not():
        pytest.skip(f"no shaped links here: {reason}")


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), *map(str, arguments)],
        env={**ENVIRONMENT, **environment}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(SCRIPT), *map(str, arguments)],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def namespaces(pid: int) -> list[str]:
    """Those of the run whose script has this pid."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in listed.stdout.splitlines() if line]
    return [name for name in names if name.startswith(f"ciera-link-{pid}-")]


def ranks(pid: int) -> list[int]:
    """Processes in the namespaces of that run."""
    found: list[int] = []
    for name in namespaces(pid):
        done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
        found += [int(one) for one in done.stdout.split()]
    return found


def assert_nothing_left(script: subprocess.Popen[str], processes: list[int]) -> None:
    assert namespaces(script.pid) == []
    for pid in processes:
        with contextlib.suppress(FileNotFoundError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            assert b"slow_link" not in command, pid


@pytest.mark.usefixtures("_network")
def test_every_size_and_mode_has_a_row_and_nothing_is_wrong(tmp_path: Path) -> None:
    flags = ["--mode", "word-delta", "--mode", "exponent-block", "--json", tmp_path / "rows"]
    done = run(*SMALL, "-e", "256K", *flags, SAMPLE, GLOO_SOCKET_IFNAME="other0")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    cells = [(row[0], row[1], row[-1]) for row in rows]
    assert cells == [(size, mode, "0") for size in ("65536", "262144")
                     for mode in ("word-delta", "exponent-block")]  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert len(lines) == 4
    for line in lines:
        assert (line["ranks"], line["link_gbit"], line["wrong"]) == (2, 1, 0)
        assert line["probed_gbit"] > 0
        assert line["wire_ratio"] > 1
        assert len(line["iterations"]["plain"]) == len(line["iterations"]["ciera"]) == 2


def by_signal(number: int) -> Callable[[subprocess.Popen[str]], None]:
    return lambda script: script.send_signal(number)


def kill_a_rank(script: subprocess.Popen[str]) -> None:
    os.kill(ranks(script.pid)[-1], signal.SIGKILL)


ENDINGS = {
    "SIGINT": (by_signal(signal.SIGINT), 130),
    "SIGTERM": (by_signal(signal.SIGTERM), 143),
    "SIGHUP": (by_signal(signal.SIGHUP), 129),
    "a rank dies": (kill_a_rank, 1),
}


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.usefixtures("_network")
def test_an_interrupted_run_leaves_no_namespace_and_no_process(how: str) -> None:
    end, status = ENDINGS[how]
    script = start(*ENDLESS, SAMPLE)
    try:
        assert script.stdout is not None
        while "(ms)" not in (line := script.stdout.readline()):  # the head: ranks are at work
            assert line, script.communicate()[1]
        assert len(namespaces(script.pid)) == 3
        running = ranks(script.pid)
        assert len(running) == 2
        end(script)
        _, errors = script.communicate(timeout=60)
        assert script.returncode == status, errors
        assert_nothing_left(script, running)
    finally:
        script.kill()
        script.communicate()


@pytest.mark.usefixtures("_network")
def test_a_set_up_that_fails_is_explained_and_undone(tmp_path: Path) -> None:
    tc = tmp_path / "tc"
    tc.write_text("#!/bin/sh\necho 'no tbf in this kernel' >&2\nexit 2\n")
    tc.chmod(0o755)
    script = subprocess.Popen(
        [str(SCRIPT), *SMALL, str(SAMPLE)], text=True, stderr=subprocess.PIPE,
        env={**ENVIRONMENT, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    _, errors = script.communicate(timeout=60)
    assert script.returncode == 1
    assert "could not be set up" in errors
    assert "no tbf in this kernel" in errors
    assert_nothing_left(script, [])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "give a trace"),
        (["--ranks"], "needs a list"),
        (["--ranks", "two", "t.npz"], "--ranks two: give numbers"),
        (["--ranks", "1", "t.npz"], "--ranks 1: give 2 to 200"),
        (["--rates", "1.2.3", "t.npz"], "--rates 1.2.3: give 0.01 to 100"),
        (["--rates", "0", "t.npz"], "--rates 0: give 0.01 to 100"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(arguments: list[str], reason: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("slow_link: ")
    assert reason in line


def test_what_is_missing_is_named_with_what_to_do(tmp_path: Path) -> None:
    for tool in ("bash", "env", "dirname", "awk", "setpriv"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "/bin/false")
    without_ip = run(SAMPLE, PATH=str(tmp_path))
    assert without_ip.returncode == 2
    assert "there is no ip; on Debian: apt-get install iproute2" in without_ip.stderr

    def tool(name: str, text: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    tool("ip", "exit 0")
    tool("tc", "exit 0")
    tool("id", "echo 1000")
    not_root = run(SAMPLE, PATH=str(tmp_path))
    assert not_root.returncode == 2
    assert "need root; run it with sudo" in not_root.stderr
    tool("id", "echo 0")
    tool("bare", "echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1")
    without_torch = run(SAMPLE, PATH=str(tmp_path), PYTHON=str(tmp_path / "bare"))
    assert without_torch.returncode == 2
    assert "No module named 'torch'); install torch and ciera there" in without_torch.stderr


@pytest.mark.usefixtures("_network")
def test_a_trace_that_cannot_be_used_is_named_once(tmp_path: Path) -> None:
    done = run(*SMALL, tmp_path / "absent.npz")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"slow_link: {tmp_path / 'absent.npz'}: no such file"]
    done = run(*SMALL, "--shard", "absent", SAMPLE)
    assert done.returncode == 2
    assert "no shard 'absent'; it holds expert_ffn" in done.stderr
