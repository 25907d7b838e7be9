"""CIERA: a stateful, lossless all-gather for sharded training."""

from ciera._native import __version__
from ciera.comm import CompressedAllgather, Handle
from ciera.errors import (
    ArgumentError,
    CieraError,
    ClosedError,
    ConcurrentCallError,
    DeadlineError,
    FrameError,
    PeerFailedError,
    RankMismatchError,
    ShardChangedError,
    TransportError,
)
from ciera.transports import Transport, loopback

__all__ = [
    "__version__",
    "CompressedAllgather",
    "Handle",
    "Transport",
    "loopback",
    "ArgumentError",
    "CieraError",
    "ClosedError",
    "ConcurrentCallError",
    "DeadlineError",
    "FrameError",
    "PeerFailedError",
    "RankMismatchError",
    "ShardChangedError",
    "TransportError",
]
