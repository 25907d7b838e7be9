"""Transport over a torch.distributed group of any backend that moves CPU tensors."""

from __future__ import annotations

import datetime
import os
import socket
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ciera.errors import DeadlineError, TransportError

# torch 2.13 renamed it and warns about the old name.
_all_gather_flat = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


_SLICE = datetime.timedelta(milliseconds=100)
_unfinished: list[Any] = []  # torch cannot take a collective back: it may still use these tensors
_made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # transports on a group


class TorchTransport:
    """Called by the native core; see native/include/ciera/transport.hpp for the contract.

    Deadlines are the group's own timeout. Uneven sizes are padded by the core. Waits look every
    100 ms whether the transport was aborted, here or (in the group's store) by a peer.
    """

    name = "torch"
    interruptible = True  # its waits run Python code at least every 100 ms
    supports_counts = False

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank: int = dist.get_rank(group)
        self.world_size: int = dist.get_world_size(group)
        self.local_world_size: int = self._ranks_on_this_host()
        self._stopped: str | None = None
        number = _made[group] = _made.get(group, 0) + 1
        self._alarm = f"ciera/{number}/aborted"
        self._store: Any = group.get_group_store()

    def _ranks_on_this_host(self) -> int:
        stated = os.environ.get("LOCAL_WORLD_SIZE")
        if stated is not None and stated.isdigit() and int(stated) > 0:
            return min(int(stated), self.world_size)
        hosts: list[Any] = [None] * self.world_size
        dist.all_gather_object(hosts, socket.gethostname(), group=self._group)
        return hosts.count(socket.gethostname())

    def allgather(self, send: memoryview, recv: memoryview) -> None:
        if len(send) == 0:
            return
        self._raise_if_stopped()
        # Tensors of our own: after a failed call the caller's memory may go, torch may not care.
        sent = torch.from_numpy(np.frombuffer(send, np.uint8).copy())
        gathered = torch.empty(len(recv), dtype=torch.uint8)
        work = _all_gather_flat(gathered, sent, group=self._group, async_op=True)
        try:
            self._finish(work)
        except BaseException:
            _unfinished.append((work, sent, gathered))
            raise
        np.frombuffer(recv, np.uint8)[:] = gathered.numpy()

    def _finish(self, work: Any) -> None:
        while True:
            try:
                work.wait(_SLICE)
                return
            except RuntimeError as error:
                if work.is_completed():
                    if "imed out" in str(error) or "imeout" in str(error):
                        raise DeadlineError(str(error)) from error
                    raise
            self._hear_alarm()
            self._raise_if_stopped()

    def _hear_alarm(self) -> None:
        try:
            if self._stopped is None and self._store.check([self._alarm]):
                self._stopped = bytes(self._store.get(self._alarm)).decode(errors="replace")
        except RuntimeError as error:  # who serves the store is gone
            self._stopped = f"the group's store is gone ({error})"

    def _raise_if_stopped(self) -> None:
        if self._stopped is not None:
            raise TransportError(self._stopped)

    def allgatherv(
        self, send: memoryview, recv: memoryview, counts: Sequence[int], offsets: Sequence[int]
    ) -> None:
        raise RuntimeError("this transport has equal sizes only")

    def abort(self, reason: str) -> None:
        """Stops the call of this rank and of every peer at its next look."""
        if self._stopped is None:
            self._stopped = f"aborted by rank {self.rank}: {reason}"
            self._store.set(self._alarm, self._stopped)
