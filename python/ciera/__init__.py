"""CIERA: a stateful, lossless all-gather for sharded training."""

from ciera._native import __version__
from ciera.comm import CompressedAllgather, Handle
from ciera.errors import (
    ArgumentError,
    CieraError,
    ClosedError,
    ConcurrentCallError,
    DeadlineError,
    DeviceError,
    FrameError,
    LibraryError,
    NoDeviceError,
    OutOfMemoryError,
    PeerFailedError,
    RankMismatchError,
    ShardChangedError,
    TransportError,
    WrongDeviceError,
)
from ciera.gathered import GatheredBuffer
from ciera.transports import Transport, loopback
from ciera.transports.nccl import nccl, nccl_unique_id

__all__ = [
    "__version__",
    "CompressedAllgather",
    "GatheredBuffer",
    "Handle",
    "Transport",
    "loopback",
    "nccl",
    "nccl_unique_id",
    "ArgumentError",
    "CieraError",
    "ClosedError",
    "ConcurrentCallError",
    "DeadlineError",
    "DeviceError",
    "FrameError",
    "LibraryError",
    "NoDeviceError",
    "OutOfMemoryError",
    "PeerFailedError",
    "RankMismatchError",
    "ShardChangedError",
    "TransportError",
    "WrongDeviceError",
]
