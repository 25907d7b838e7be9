"""NCCL communicators, and where a wheel keeps libnccl."""

from __future__ import annotations

import os
import sys
from typing import Any

from ciera import _native, wheels
from ciera.errors import ArgumentError, TransportError
from ciera.transports import seconds


def point_to_wheel() -> None:
    """Sets CIERA_NCCL_LIBRARY to an installed wheel's library, as ``wheels`` does.

    A libnccl that torch has loaded is left to be used.
    """
    wheels.point_to_wheel("CIERA_NCCL_LIBRARY", "nccl/lib/libnccl.so.2")


def library() -> tuple[bool, str]:
    """Whether libnccl can be used: version and path, or why not."""
    point_to_wheel()
    return _native.nccl_library()


def nccl_unique_id() -> bytes:
    """What one rank makes and gives to all ranks by its own means, for ``nccl(unique_id=...)``."""
    point_to_wheel()
    return _native.nccl_unique_id()


class _Group:
    """What is used of an mpi4py communicator or a torch.distributed group."""

    def __init__(self, source: Any) -> None:
        mpi = sys.modules.get("mpi4py.MPI")
        dist = sys.modules.get("torch.distributed")
        self._source = source
        if mpi is not None and isinstance(source, mpi.Comm):
            self._dist = None
            self.rank: int = source.rank
            self.world_size: int = source.size
        elif dist is not None and isinstance(source, dist.ProcessGroup):
            self._dist = dist
            self.rank = dist.get_rank(source)
            self.world_size = dist.get_world_size(source)
        else:
            raise ArgumentError(
                f"a {type(source).__name__} cannot start NCCL; give an mpi4py communicator or a "
                "torch.distributed group, or unique_id, rank and world_size"
            )

    def allgather(self, item: Any) -> list[Any]:
        if self._dist is None:
            return list(self._source.allgather(item))
        items: list[Any] = [None] * self.world_size
        self._dist.all_gather_object(items, item, group=self._source)
        return items

    def local_rank(self) -> int | None:
        """This rank's place among the ranks of its host, where the group can tell."""
        if self._dist is not None:
            return None
        from mpi4py import MPI

        local = self._source.Split_type(MPI.COMM_TYPE_SHARED)
        try:
            return int(local.rank)
        finally:
            local.Free()


def _share_unique_id(group: _Group) -> bytes:
    """Rank 0's id, or the same error, on every rank: none waits for a peer in vain."""
    unique_id, problem = None, None
    available, detail = library()
    if not available:
        problem = detail
    elif group.rank == 0:
        try:
            unique_id = _native.nccl_unique_id()
        except TransportError as error:
            problem = str(error)
    answers = group.allgather((unique_id, problem))
    problems = [f"rank {r}: {why}" for r, (_, why) in enumerate(answers) if why is not None]
    if problems:
        raise TransportError("NCCL cannot be used on every rank; " + "; ".join(problems))
    return bytes(answers[0][0])


def _default_device(group: _Group | None) -> int:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.current_device())
    stated = os.environ.get("LOCAL_RANK")
    if stated is not None and stated.isdigit():
        return int(stated)
    local = group.local_rank() if group is not None else None
    return local if local is not None else 0


def nccl(
    source: Any = None,
    *,
    unique_id: bytes | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    device: int | None = None,
    timeout: float = 600.0,
) -> _native.Transport:
    """A transport over a new NCCL communicator. Collective.

    ``source`` is an mpi4py communicator or a torch.distributed group: the ranks are its ranks and
    rank 0's unique id travels over it. Without one, give ``unique_id`` (from ``nccl_unique_id()``
    on one rank), ``rank`` and ``world_size``. ``device`` is this rank's CUDA ordinal; by default
    torch's current device where torch sees a GPU, else LOCAL_RANK, else the rank on this host as
    MPI knows it. ``timeout``, in seconds, bounds each wait for peers, this call's own included.
    """
    stated = (unique_id, rank, world_size)
    if source is not None:
        if any(argument is not None for argument in stated):
            raise ArgumentError("give a source, or unique_id, rank and world_size; not both")
        group = _Group(source)
        # Before the id is shared: with MPI, finding the device is a call of all ranks too.
        device = _default_device(group) if device is None else device
        unique_id, rank, world_size = _share_unique_id(group), group.rank, group.world_size
    if unique_id is None or rank is None or world_size is None:
        raise ArgumentError("without a source, unique_id, rank and world_size are all needed")
    point_to_wheel()
    device = _default_device(None) if device is None else device
    return _native.nccl(unique_id, rank, world_size, device, seconds(timeout))
