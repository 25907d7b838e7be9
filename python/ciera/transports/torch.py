"""Transport over a torch.distributed group of any backend that moves CPU tensors."""

from __future__ import annotations

import ctypes
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
# The last call of each group. A thread of torch's may hold a complete call a moment longer than we
# do; the last owner of a tensor needs Python, which may be ending.
_latest: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
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
        self._stopped: str | None = None
        number = _made[group] = _made.get(group, 0) + 1
        self._alarm = f"ciera/{number}/aborted"
        self._store: Any = group.get_group_store()
        self.local_world_size: int = self._ranks_on_this_host(f"ciera/{number}/host")

    def _ranks_on_this_host(self, key: str) -> int:
        stated = os.environ.get("LOCAL_WORLD_SIZE")
        if stated is not None and stated.isdigit() and int(stated) > 0:
            return min(int(stated), self.world_size)
        # Over the store: a collective would leave torch's thread with tensors of Python's.
        own = socket.gethostname()
        self._store.set(f"{key}/{self.rank}", own)
        hosts = [bytes(self._store.get(f"{key}/{r}")).decode() for r in range(self.world_size)]
        return hosts.count(own)

    def allgather(self, send: memoryview, recv: memoryview) -> None:
        if len(send) == 0:
            return
        self._raise_if_stopped()
        # Tensors of our own: after a failed call the caller's memory may go, torch may not care.
        sent = torch.empty(len(send), dtype=torch.uint8)
        sent.numpy()[:] = np.frombuffer(send, np.uint8)
        gathered = torch.empty(len(recv), dtype=torch.uint8)
        work = _all_gather_flat(gathered, sent, group=self._group, async_op=True)
        try:
            self._finish(work)
        except BaseException:
            # torch cannot take a collective back: it may use them as long as there is a process.
            for one in (work, sent, gathered):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
            raise
        np.frombuffer(recv, np.uint8)[:] = gathered.numpy()
        without_memory: Any = torch.empty(0, dtype=torch.uint8)
        _latest[self._group] = (work, sent.set_(without_memory), gathered.set_(without_memory))

    def _finish(self, work: Any) -> None:
        while True:
            complete = work.is_completed()
            try:
                work.wait(_SLICE)
                return
            except RuntimeError as error:
                # Of a call that was under way, this may be the end of our slice only, even when it
                # is complete by now.
                if complete:
                    if "imed out" in str(error) or "imeout" in str(error):
                        raise DeadlineError(str(error)) from error
                    raise
            if not work.is_completed():
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
