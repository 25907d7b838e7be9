"""Ways for ranks to reach each other."""

from __future__ import annotations

import sys
from typing import Any

from ciera import _native
from ciera.errors import ArgumentError

Transport = _native.Transport


def loopback(world_size: int, *, timeout: float = 600.0) -> list[Transport]:
    """Ranks as threads of this process: one transport a rank, in rank order.

    A call that waits for a peer longer than ``timeout`` seconds raises DeadlineError.
    """
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ArgumentError(f"world_size={world_size!r} is not possible; give an int >= 1")
    return _native.loopback(world_size, seconds(timeout))


def seconds(timeout: Any) -> float:
    """A timeout as a float; raises ArgumentError for what is no number of seconds >= 0."""
    try:
        number = -1.0 if isinstance(timeout, bool | str | bytes) else float(timeout)
    except (TypeError, ValueError):
        number = -1.0
    if not number >= 0:
        raise ArgumentError(f"timeout={timeout!r} is not possible; give seconds >= 0")
    return number


def as_transport(source: Any) -> Transport:
    """The transport for what a user has: a Transport, an mpi4py communicator, a torch group."""
    if isinstance(source, Transport):
        return source
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and isinstance(source, mpi.Comm):
        from ciera.transports.mpi import MpiTransport

        return _native.callback_transport(MpiTransport(source))
    dist = sys.modules.get("torch.distributed")
    if dist is not None and isinstance(source, dist.ProcessGroup):
        from ciera.transports.torch import TorchTransport

        return _native.callback_transport(TorchTransport(source))
    raise ArgumentError(
        f"a {type(source).__name__} is no transport; give one of ciera.loopback(world_size), an "
        "mpi4py communicator, a torch.distributed group or ciera.nccl(...) of those"
    )
