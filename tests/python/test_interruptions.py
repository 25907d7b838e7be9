"""Calls that never complete: the end of the interpreter, Ctrl-C and fork."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

TWO_RANKS = """
import atexit, os, signal, sys, threading, time
import numpy as np
import ciera
first, second = ciera.loopback(2)
comm = ciera.CompressedAllgather(first)
shard = np.zeros(100, np.float32)
"""
GLOO = """
import os, sys
import numpy as np
import torch.distributed as dist
import ciera
dist.init_process_group("gloo")
rank = dist.get_rank()
comm = ciera.CompressedAllgather(dist.group.WORLD)
shard = np.zeros(100, np.float32)
store = dist.group.WORLD.get_group_store()
met = 0
def meet():  # beside the collectives, which a failed one leaves out of step
    global met
    met += 1
    store.set(f"{met}/{rank}", "here")
    store.wait([f"{met}/0", f"{met}/1"])
"""


def python(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", text],
        capture_output=True, text=True, timeout=30, env={**os.environ, **environment},
    )  # fmt: skip


def gloo(text: str) -> list[tuple[int, str]]:
    """Exit status and output of two ranks that run the same text."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", GLOO + text],
            env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                 "WORLD_SIZE": "2", "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=60)[0] for process in ranks]
    return [(one.returncode, text) for one, text in zip(ranks, outputs, strict=True)]


PENDING_AT_EXIT = {
    "a handle": "handle = comm.allgather_async('w', shard)",
    "no handle": "comm.allgather_async('w', shard)",
    "no communicator": "comm.allgather_async('w', shard); held = [comm]; del comm",
    "a daemon thread inside": """
started = threading.Event()
def body():
    started.set()
    try:
        comm.allgather('w', shard)
    except ciera.TransportError:
        pass
threading.Thread(target=body, daemon=True).start()
started.wait()
""",
    "a with block": "comm.__enter__().allgather_async('w', shard); sys.exit(0)",
}


@pytest.mark.parametrize("what", PENDING_AT_EXIT)
def test_the_interpreter_ends_with_a_call_under_way(what: str) -> None:
    start = time.monotonic()
    done = python(TWO_RANKS + PENDING_AT_EXIT[what])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert time.monotonic() - start < 15


@pytest.mark.parametrize("where", ["comm.allgather_async('w', shard)",
                                   "with comm:\n    comm.allgather_async('w', shard)"])  # fmt: skip
def test_an_uncaught_error_ends_the_program_as_ever(where: str) -> None:
    done = python(TWO_RANKS + where + "\n    raise KeyError('mine')" if "with" in where
                  else TWO_RANKS + where + "\nraise KeyError('mine')")  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("KeyError: 'mine'")
    assert "Fatal" not in done.stderr


def test_a_python_transport_is_not_entered_while_the_interpreter_ends() -> None:
    done = python("""
import threading, time
import numpy as np
import ciera
from ciera import _native
class Slow:
    rank, world_size, name, local_world_size, supports_counts = 0, 2, "slow", 1, True
    stopped = threading.Event()
    def allgather(self, send, recv):
        while not self.stopped.wait(0.05):
            pass
        raise OSError("stopped")
    def abort(self, reason):
        self.stopped.set()
comm = ciera.CompressedAllgather(_native.callback_transport(Slow()))
handles = [comm.allgather_async('w', np.zeros(4)) for _ in range(3)]
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_gloo_ends_with_a_call_under_way() -> None:
    pytest.importorskip("torch")
    for status, text in gloo("if rank == 0: comm.allgather_async('w', shard)"):
        assert status == 0, text
    for status, text in gloo("comm.allgather_async('w' if rank else 'v', shard); assert rank"):
        assert status in (0, 1), text
        assert "terminate called" not in text


def test_gloo_peers_hear_of_an_abort() -> None:
    pytest.importorskip("torch")
    text = """
if rank == 0:
    handle = comm.allgather_async('w', shard)
    comm.allgather('w', shard)
    handle.wait()
    comm.close()
    second = ciera.CompressedAllgather(dist.group.WORLD)
    try:
        second.allgather('w', shard)
    except ciera.TransportError as error:
        assert "no more" in str(error), error
else:
    comm.allgather('w', shard)
    comm.allgather('w', shard)
    comm.close()
    transport = ciera.transports.as_transport(dist.group.WORLD)
    transport.abort("no more")
    try:
        transport.allgather(b"1234", bytearray(8))
        raise SystemExit(3)
    except ciera.TransportError as error:
        assert "no more" in str(error), error
meet()
"""
    for status, output in gloo(text):
        assert status == 0, output


INTERRUPTED = {
    "allgather": "comm.allgather('w', shard)",
    "handle.wait": "comm.allgather_async('w', shard).wait()",
    "handle.wait with a timeout": "comm.allgather_async('w', shard).wait(500)",
    "close": "comm.allgather_async('w', shard); comm.close()",
    "reset": "comm.allgather_async('w', shard); comm.reset()",
    "stats": "comm.allgather_async('w', shard); time.sleep(0.1); comm.stats()",
    "a wrong argument": "comm.allgather('w', [1])",
    "with": "comm.__enter__(); comm.allgather_async('w', shard); comm.__exit__(None, None, None)",
    "the body of with": """
with comm:
    comm.allgather_async('w', shard)
    threading.Event().wait()
""",
    # Python raises what a destructor cannot after the next function that is called.
    "del": "comm.allgather_async('w', shard); del comm; len('')",
}
INTERRUPT = """
def interrupt():
    time.sleep(0.5)
    global sent
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
{body}
    time.sleep(5)
    raise SystemExit('not interrupted')
except KeyboardInterrupt:
    late = time.monotonic() - sent
    assert late < 0.5, late
"""
AFTERWARDS = """
try:
    comm.allgather('v', shard)
except ciera.TransportError as error:
    assert 'interrupted' in str(error), error
except ciera.ClosedError:
    pass
else:
    raise SystemExit('usable')
begin = time.monotonic()
comm.close()
del comm
assert time.monotonic() - begin < 0.5
other = ciera.CompressedAllgather(second)
try:
    other.allgather('w', shard)
    raise SystemExit('the peer got a result')
except ciera.TransportError as error:
    assert 'interrupted' in str(error) or 'closed while' in str(error), error
"""


@pytest.mark.parametrize("what", INTERRUPTED)
def test_ctrl_c_ends_a_wait_at_once_and_the_peers_are_told(what: str) -> None:
    body = "\n".join("    " + line for line in INTERRUPTED[what].strip().splitlines())
    rest = "" if what in ("del", "stats") else AFTERWARDS
    done = python(TWO_RANKS + INTERRUPT.format(body=body) + rest)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_a_wait_over_a_transport_that_does_not_look_for_it() -> None:
    done = python(TWO_RANKS + """
from ciera import _native
class Deaf:
    rank, world_size, name, local_world_size, supports_counts = 0, 2, "deaf", 1, True
    def allgather(self, send, recv):
        first.allgather(bytes(send), recv)
    def abort(self, reason):
        first.abort(reason)
comm = ciera.CompressedAllgather(_native.callback_transport(Deaf()))
""" + INTERRUPT.format(body="    comm.allgather('w', shard)") + AFTERWARDS)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_a_wait_over_gloo() -> None:
    pytest.importorskip("torch")
    text = """
import os, signal, threading, time
if rank == 0:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        comm.allgather('w', shard)
        raise SystemExit(3)
    except KeyboardInterrupt:
        comm.close()
meet()
if rank == 1:
    try:
        comm.allgather('w', shard)
        raise SystemExit(3)
    except ciera.TransportError as error:
        assert "interrupted" in str(error), error
meet()
"""
    for status, output in gloo(text):
        assert status == 0, output


def test_a_signal_handler_that_returns_does_not_end_a_wait() -> None:
    done = python(
        TWO_RANKS
        + """
seen = []
signal.signal(signal.SIGINT, lambda *_: (seen.append(1), first.abort("seen")))
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    comm.allgather('w', shard)
except ciera.TransportError as error:
    assert "aborted by rank 0: seen" in str(error), error
assert seen == [1]
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


FORKED = """
transports, spare = ciera.loopback(2), ciera.loopback(2)
comms = [ciera.CompressedAllgather(one, threads=3) for one in transports]
handle = comms[0].allgather_async('w', shard)
result = comms[1].allgather('w', shard)
handle.wait()
pending = comms[0].allgather_async('v', shard)
child = os.fork()
if child == 0:
    signal.alarm(20)
    comm = comms[0]
    for use in (lambda: comm.allgather('w', shard), lambda: comm.allgather_async('w', shard),
                lambda: comm.allgather('w', [1]), comm.close, comm.reset, comm.stats,
                comm.memory, pending.wait, pending.done,
                lambda: spare[0].allgather(b"1", bytearray(2)),
                lambda: ciera.CompressedAllgather(spare[1]).allgather('w', shard)):
        try:
            use()
        except ciera.ClosedError as error:
            assert f"another process (pid {os.getppid()})" in str(error), error
            assert "after fork" in str(error)
        else:
            raise SystemExit("a fork used it")
    spare[0].abort('nobody hears it')
    del comm, comms[:], transports[:], spare[:], pending, handle, result, use
    with ciera.CompressedAllgather(ciera.loopback(1)[0]) as own:
        assert own.allgather('w', shard).size == 100
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
comms[1].allgather('v', shard)
assert pending.wait().size == 200
"""


def test_a_fork_can_use_nothing_and_ends_as_ever() -> None:
    done = python(TWO_RANKS + FORKED)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_result_outlives_its_communicator_in_a_fork() -> None:
    done = python("""
import os, signal, sys
import numpy as np
import ciera
(transport,) = ciera.loopback(1)
with ciera.CompressedAllgather(transport, threads=3) as comm:
    result = comm.allgather('w', np.ones(100, np.float32))
del comm, transport
child = os.fork()
if child == 0:
    signal.alarm(20)
    assert result.sum() == 100
    del result
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
""")
    assert (done.returncode, done.stderr) == (0, "")
