"""Transport over a torch.distributed group of any backend that moves CPU tensors."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ciera.errors import DeadlineError

# torch 2.13 renamed it and warns about the old name.
_all_gather_flat = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


def _tensor(buffer: memoryview) -> Any:
    if len(buffer) == 0:
        return torch.empty(0, dtype=torch.uint8)
    array = np.frombuffer(buffer, np.uint8)
    return torch.from_numpy(array.copy() if buffer.readonly else array)  # torch has no const


class TorchTransport:
    """Called by the native core; see native/include/ciera/transport.hpp for the contract.

    Deadlines are the group's own timeout. Uneven sizes are padded by the core.
    """

    name = "torch"
    supports_counts = False

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank: int = dist.get_rank(group)
        self.world_size: int = dist.get_world_size(group)
        self.local_world_size: int = self._ranks_on_this_host()

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
        try:
            _all_gather_flat(_tensor(recv), _tensor(send), group=self._group)
        except RuntimeError as error:
            if "imed out" in str(error) or "imeout" in str(error):
                raise DeadlineError(str(error)) from error
            raise

    def allgatherv(
        self, send: memoryview, recv: memoryview, counts: Sequence[int], offsets: Sequence[int]
    ) -> None:
        raise RuntimeError("this transport has equal sizes only")

    def abort(self, reason: str) -> None:
        dist.destroy_process_group(self._group)
