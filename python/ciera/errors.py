"""Exceptions of the library. Native code raises them by name."""


class CieraError(Exception):
    """Base of all of them."""


class ArgumentError(CieraError, ValueError):
    """Wrong input of this rank; nothing has changed on any rank."""


class ShardChangedError(ArgumentError):
    """dtype or length of a shard_id changed; ``reset(shard_id)`` on every rank allows it."""


class RankMismatchError(CieraError):
    """The ranks asked for different calls; raised on every rank."""


class PeerFailedError(CieraError):
    """Another rank reported its own error in this call; nothing has changed."""


class FrameError(CieraError):
    """A frame was refused; every rank has dropped its state of the call's shards."""


class TransportError(CieraError):
    """The transport failed; only ``close()`` remains."""


class DeadlineError(TransportError, TimeoutError):
    """A wait outlasted its deadline."""


class ClosedError(CieraError):
    """The communicator is closed, or was made in another process (before a fork)."""


class ConcurrentCallError(CieraError):
    """Two threads used one communicator at once.

    Peers that make the refused call wait for it until their deadline: abort the transport if this
    rank will not repeat it.
    """


class DeviceError(CieraError):
    """The GPU or its driver failed."""


class NoDeviceError(DeviceError):
    """No usable GPU: there is none, its driver is too old, or this build has no CUDA."""


class WrongDeviceError(ArgumentError):
    """An array lies on another device than the communicator's."""


class OutOfMemoryError(CieraError, MemoryError):
    """The host or the GPU gives no more memory; nothing has changed, the call may be repeated."""


class LibraryError(CieraError):
    """A library that is loaded at run time (NCCL, nvCOMP) is missing or unusable."""
