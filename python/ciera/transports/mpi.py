"""Transport over an mpi4py communicator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from ciera.errors import DeadlineError

_CHUNK_BYTES = 1 << 30  # MPI counts are 32-bit ints in most builds


class MpiTransport:
    """Called by the native core; see native/include/ciera/transport.hpp for the contract.

    Non-blocking collectives are polled, so that a missing peer is a DeadlineError and not a hang.
    """

    name = "mpi"
    supports_counts = True

    def __init__(self, comm: Any, *, timeout: float = 600.0) -> None:
        self._comm = comm.Dup()  # our messages never meet the caller's
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
            gathered = bytearray(sum(parts))
            places = [sum(parts[:r]) for r in range(self.world_size)]
            self._finish(
                self._comm.Iallgatherv(
                    [send[start : start + own], own, MPI.BYTE],
                    [gathered, parts, places, MPI.BYTE],
                )
            )
            for r, (part, place) in enumerate(zip(parts, places, strict=True)):
                if r != self.rank:
                    to = offsets[r] + start
                    recv[to : to + part] = gathered[place : place + part]
        own_at = offsets[self.rank]
        recv[own_at : own_at + len(send)] = send

    def _finish(self, request: Any) -> None:
        deadline = time.monotonic() + self._timeout
        pause = 0.0
        while not request.Test():
            if time.monotonic() > deadline:
                raise DeadlineError(f"no answer from a peer within {self._timeout} s")
            time.sleep(pause)  # gives the core to a peer that shares it
            pause = min(0.001, pause + 0.00001)

    def abort(self, reason: str) -> None:
        self._comm.Abort(1)
