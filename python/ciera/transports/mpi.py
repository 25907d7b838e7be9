"""Transport over an mpi4py communicator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from ciera.errors import DeadlineError, TransportError

_CHUNK_BYTES = 1 << 30  # MPI counts are 32-bit ints in most builds
_QUIET_S = 0.005  # from when on a waiting call looks for an alarm
_unfinished: list[Any] = []  # MPI cannot take a collective back: it may still use these buffers


class MpiTransport:
    """Called by the native core; see native/include/ciera/transport.hpp for the contract.

    Non-blocking collectives are polled, so that a missing peer is a DeadlineError and not a hang.
    """

    name = "mpi"
    interruptible = True  # its waits run Python code at least every 100 ms
    supports_counts = True

    def __init__(self, comm: Any, *, timeout: float = 600.0) -> None:
        self._comm = comm.Dup()  # our messages never meet the caller's
        self._alarms = comm.Dup()  # carries nothing but reasons to stop
        self._stopped: str | None = None
        self._timeout = timeout
        self.rank: int = self._comm.rank
        self.world_size: int = self._comm.size
        local = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_world_size: int = local.size
        local.Free()

    def allgather(self, send: memoryview, recv: memoryview) -> None:
        size = len(send)
        self.allgatherv(
            send, recv, [size] * self.world_size, [size * r for r in range(self.world_size)]
        )

    def allgatherv(
        self, send: memoryview, recv: memoryview, counts: Sequence[int], offsets: Sequence[int]
    ) -> None:
        chunk = max(1, _CHUNK_BYTES // self.world_size)
        for start in range(0, max([*counts, 1]), chunk):
            parts = [min(chunk, max(0, count - start)) for count in counts]
            own = parts[self.rank]
            # Through a buffer of its own: MPI forbids overlap, and displacements must fit an int.
            # And what is sent may be freed by its owner when a call fails.
            sent = bytes(send[start : start + own])
            gathered = bytearray(sum(parts))
            places = [sum(parts[:r]) for r in range(self.world_size)]
            self._raise_if_stopped()
            request = self._comm.Iallgatherv(
                [sent, own, MPI.BYTE], [gathered, parts, places, MPI.BYTE]
            )
            try:
                self._finish(request)
            except BaseException:
                _unfinished.append((request, sent, gathered))
                raise
            for r, (part, place) in enumerate(zip(parts, places, strict=True)):
                if r != self.rank:
                    to = offsets[r] + start
                    recv[to : to + part] = gathered[place : place + part]
        own_at = offsets[self.rank]
        recv[own_at : own_at + len(send)] = send

    def _finish(self, request: Any) -> None:
        start = time.monotonic()
        pause = 0.0
        while not request.Test():
            waited = time.monotonic() - start
            if waited > self._timeout:
                raise DeadlineError(f"no answer from a peer within {self._timeout} s")
            if waited > _QUIET_S:
                self._hear_alarms()
            self._raise_if_stopped()
            time.sleep(pause)  # gives the core to a peer that shares it
            pause = min(0.001, pause + 0.00001)

    def _hear_alarms(self) -> None:
        status = MPI.Status()
        if self._stopped is None and self._alarms.Iprobe(status=status):
            text = bytearray(status.Get_count(MPI.BYTE))
            self._alarms.Recv([text, MPI.BYTE], source=status.source)
            self._stopped = f"aborted by rank {status.source}: {text.decode(errors='replace')}"

    def _raise_if_stopped(self) -> None:
        if self._stopped is not None:
            raise TransportError(self._stopped)

    def abort(self, reason: str) -> None:
        """Stops this rank's call at its next look; the peers' when they hear of it."""
        if self._stopped is not None:
            return
        self._stopped = f"aborted by rank {self.rank}: {reason}"
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            return  # the call's thread may be inside MPI
        text = reason.encode()[:200]
        for peer in range(self.world_size):
            if peer != self.rank:
                _unfinished.append((self._alarms.Isend([text, MPI.BYTE], dest=peer), text))
