"""The transport contract, one suite for loopback, MPI, torch.distributed and NCCL."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import ciera
import numpy as np
import pytest
from ciera.transports.nccl import library
from test_allgather import on_ranks

ONE_GPU = Path(__file__).parents[2] / "bench/one_gpu.sh"
WORKER = Path(__file__).with_name("transport_worker.py")
SAMPLE = Path(__file__).parents[1] / "data/sample_trace.npz"


def mpirun(ranks: int, *command: str) -> subprocess.CompletedProcess[str]:
    launcher = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or "mpirun"
    environment = {**os.environ, "OMPI_MCA_btl": "^tcp", "OMPI_MCA_pml": "ob1"}
    return subprocess.run(
        [launcher, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks),
         sys.executable, *command],
        capture_output=True, text=True, timeout=300, env=environment,
    )  # fmt: skip


def test_loopback_keeps_the_contract() -> None:
    from transport_worker import check_transport

    for world_size in (1, 2, 5):
        on_ranks(world_size, lambda rank, transport: check_transport(transport))


def test_mpi_keeps_the_contract() -> None:
    done = mpirun(3, str(WORKER), "mpi")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("contract kept") == 3


def test_nccl_keeps_the_contract() -> None:
    available, why = library()
    if not available:
        pytest.skip(why)
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("no NVIDIA GPU here")
    done = subprocess.run(
        [str(ONE_GPU), "3", sys.executable, str(WORKER), "nccl"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("contract kept") == 3


def test_torch_gloo_keeps_the_contract() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3",
    }  # fmt: skip
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), "torch"],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]
    for worker in workers:
        text, _ = worker.communicate(timeout=300)
        assert worker.returncode == 0, text
        assert "contract kept" in text


class LateWork:
    """Completes just after a wait for it has timed out; then it is what `verdict` says."""

    def __init__(self, verdict: Exception | None) -> None:
        self.verdict = verdict
        self.waits = 0

    def is_completed(self) -> bool:
        return self.waits > 0

    def wait(self, timeout: Any) -> None:
        self.waits += 1
        if self.waits == 1:
            raise RuntimeError("Operation timed out!")
        if self.verdict is not None:
            raise self.verdict


def test_a_gloo_call_that_completes_at_the_end_of_a_slice_is_no_missed_deadline() -> None:
    pytest.importorskip("torch")
    from ciera.transports.torch import TorchTransport

    transport = TorchTransport.__new__(TorchTransport)
    transport._finish(LateWork(None))
    with pytest.raises(ciera.DeadlineError, match="from a peer"):
        transport._finish(LateWork(RuntimeError("Timed out waiting for data from a peer")))
    with pytest.raises(RuntimeError, match="Connection closed"):
        transport._finish(LateWork(RuntimeError("Connection closed by peer")))


def test_replay_runs_under_mpirun() -> None:
    done = mpirun(2, "-m", "ciera.cli", "replay", str(SAMPLE), "--transport", "mpi", "--steps", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("bit for bit") == 1
    wrong = mpirun(
        2, "-m", "ciera.cli", "replay", str(SAMPLE), "--transport", "mpi", "--world-size", "3"
    )
    assert wrong.returncode == 2


def test_a_missing_peer_is_named_and_nothing_hangs() -> None:
    first, _, third = ciera.loopback(3, timeout=0.2)
    comm = ciera.CompressedAllgather(first)
    other = ciera.CompressedAllgather(third)
    handle = other.allgather_async("w", np.zeros(4, np.float32))
    with pytest.raises(ciera.TransportError, match=r"rank\(s\) 1"):
        comm.allgather("w", np.zeros(4, np.float32))
    with pytest.raises(ciera.TransportError):
        handle.wait()


def test_a_python_transport_that_raises_poisons_the_communicator() -> None:
    class Broken:
        rank, world_size, name, local_world_size, supports_counts = 0, 2, "broken", 1, True

        def allgather(self, send: Any, recv: Any) -> None:
            raise OSError("cable pulled")

    from ciera import _native

    comm = ciera.CompressedAllgather(_native.callback_transport(Broken()))
    for _ in range(2):
        with pytest.raises(ciera.TransportError, match="cable pulled"):
            comm.allgather("w", np.zeros(4, np.float32))


def test_mpi_peers_hear_of_an_interrupt() -> None:
    text = """
import os, signal, threading, time
import numpy as np
from mpi4py import MPI
import ciera
world, shard = MPI.COMM_WORLD, np.zeros(100, np.float32)
comm = ciera.CompressedAllgather(world)
comm.allgather('w', shard)
if comm.rank == 0:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        comm.allgather_async('w', shard).wait()
        raise SystemExit(3)
    except KeyboardInterrupt:
        pass
world.Barrier()
try:
    comm.allgather('w', shard)
    raise SystemExit(4)
except ciera.TransportError as error:
    assert 'interrupted' in str(error), error
comm.close()
print('told', flush=True)
"""
    done = mpirun(2, "-c", text)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("told") == 2


def test_mpi_ends_with_a_call_under_way() -> None:
    text = """
import numpy as np
from mpi4py import MPI
import ciera
comm = ciera.CompressedAllgather(MPI.COMM_WORLD)
if comm.rank == 0:
    comm.allgather_async('w', np.zeros(4, np.float32))
"""
    done = mpirun(2, "-c", text)
    assert done.returncode == 0, done.stdout + done.stderr
