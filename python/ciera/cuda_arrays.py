"""GPU arrays of torch, CuPy, ``__cuda_array_interface__`` and DLPack, and results in GPU memory.

Neither torch nor CuPy is imported: who passes their arrays has loaded them.
"""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from ciera import _native
from ciera.devices import Device
from ciera.errors import ArgumentError, WrongDeviceError

_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
_DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
LEGACY_STREAM = 1  # CUDA's handles of the two default streams
_LEGACY = (0, LEGACY_STREAM)  # a null handle is the same stream


@dataclass(frozen=True)
class GpuArray:
    """A caller's array in GPU memory. ``device`` None: an empty array that does not say."""

    pointer: int
    dtype: str  # a name as numpy and torch give it
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in bytes; None is row-major without gaps
    device: int | None
    stream: int | None  # that the array is used on; None: nothing to wait for
    read_only: bool
    owner: Any  # keeps the memory

    @property
    def numel(self) -> int:
        """Elements of a 1-D array."""
        return self.shape[0]

    def require_plain(self, writable: bool) -> None:
        """Raises ArgumentError for anything else than a contiguous 1-D array to read or write."""
        gaps = self.strides not in (None, (self.itemsize,)) and self.shape[:1] > (1,)
        if len(self.shape) != 1 or gaps:
            raise ArgumentError(
                f"a contiguous 1-D view is needed, this has shape {self.shape} and strides "
                f"{self.strides} (bytes); pass its contiguous copy, flattened"
            )
        if writable and self.read_only:
            raise ArgumentError("out is read-only")


def torch_array(tensor: Any) -> GpuArray:
    """A torch tensor on a GPU, used on torch's current stream of that GPU."""
    torch = sys.modules["torch"]
    plain = tensor.detach()
    width = plain.element_size()
    return GpuArray(
        pointer=plain.data_ptr(),
        dtype=str(plain.dtype).removeprefix("torch."),
        itemsize=width,
        shape=tuple(plain.shape),
        strides=tuple(width * step for step in plain.stride()),
        device=plain.device.index,
        stream=int(torch.cuda.current_stream(plain.device).cuda_stream),
        read_only=False,
        owner=plain,
    )


def is_cupy(array: object) -> bool:
    """True for a CuPy array; CuPy itself is never imported for the question."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


def _cupy_array(array: Any) -> GpuArray:
    cupy = sys.modules["cupy"]
    device = int(array.device.id)
    with cupy.cuda.Device(device):
        stream = int(cupy.cuda.get_current_stream().ptr)
    return GpuArray(
        pointer=int(array.data.ptr),
        dtype=array.dtype.name,
        itemsize=array.dtype.itemsize,
        shape=tuple(array.shape),
        strides=tuple(array.strides),
        device=device,
        stream=stream,
        read_only=False,
        owner=array,
    )


def _interface_array(array: Any, interface: Any) -> GpuArray:
    """Versions 2 and 3 of the interface; only 3 has a stream, "None" says there is no need to."""
    try:
        dtype = np.dtype(interface["typestr"])
        pointer, read_only = interface["data"]
        pointer = int(pointer or 0)
        shape = tuple(map(int, interface["shape"]))
        strides = interface.get("strides")
        strides = None if strides is None else tuple(map(int, strides))
        stream, mask = interface.get("stream"), interface.get("mask")
        stream = None if stream is None else int(stream)
    except Exception as error:  # the array's own code
        raise ArgumentError(f"__cuda_array_interface__ cannot be read ({error!r})") from error
    if not dtype.isnative:
        raise ArgumentError(f"the byte order of {dtype} is not this machine's")
    if mask is not None:
        raise ArgumentError("an array with a mask cannot be gathered")
    if stream == 0:
        raise ArgumentError("stream 0 of __cuda_array_interface__ is ambiguous; give 1, 2 or None")
    device = _native.device_of(pointer)
    if device is None and 0 not in shape and _native.cuda_support()[0]:
        raise ArgumentError(f"{pointer:#x} of __cuda_array_interface__ is no GPU memory")
    return GpuArray(
        pointer=pointer,
        dtype=dtype.name,
        itemsize=dtype.itemsize,
        shape=shape,
        strides=strides,
        device=device,
        stream=stream,
        read_only=bool(read_only),
        owner=array,
    )


def _dlpack_export(array: Any, stream: int) -> Any:
    try:
        return array.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:  # written before DLPack had versions
        return array.__dlpack__(stream=stream)


def _dlpack_array(array: Any, stream: int | None) -> GpuArray:
    """Its memory is ready on ``stream`` (the legacy default stream when None): DLPack says so."""
    # In DLPack 0 is no stream; a null handle is the legacy default stream.
    on = stream or LEGACY_STREAM
    try:
        view = _native.DlpackView(_dlpack_export(array, on))
    except Exception as error:  # the array's own code, which may raise anything
        raise ArgumentError(
            f"the array cannot be read through DLPack ({type(error).__name__}: {error})"
        ) from error
    code, bits, lanes = view.dtype
    if lanes != 1 or bits % 8:
        raise ArgumentError(f"elements of {lanes} x {bits} bits are not supported")
    width = bits // 8
    name = _DLPACK_KINDS.get(code, f"kind {code} of ")
    return GpuArray(
        pointer=view.pointer,
        dtype=name if name == "bool" else f"{name}{bits}",
        itemsize=width,
        shape=tuple(view.shape),
        strides=None if view.strides is None else tuple(width * step for step in view.strides),
        device=view.device[1],
        stream=on,
        read_only=view.read_only,
        owner=(array, view),
    )


def gpu_array(array: Any, stream: int | None) -> GpuArray | None:
    """The array's GPU memory, or None when it has none. Not for torch tensors.

    ``stream``: the one that the caller states, for DLPack, which orders the array itself.
    """
    if isinstance(array, np.ndarray):
        return None
    if is_cupy(array):
        return _cupy_array(array)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _interface_array(array, interface)
    where = getattr(array, "__dlpack_device__", None)
    if where is None:
        return None
    try:
        on_gpu = int(where()[0]) in _DLPACK_CUDA
    except Exception as error:  # the array's own code
        raise ArgumentError(
            f"__dlpack_device__ cannot be read ({type(error).__name__}: {error})"
        ) from error
    return _dlpack_array(array, stream) if on_gpu else None


def stream_handle(stream: Any, device: Device) -> int | None:
    """The CUDA handle in ``stream``: an int, a torch or CuPy stream, or None. Raises ArgumentError.

    None stays None: the arrays then say which stream they are used on.
    """
    if stream is None:
        return None
    if device.index is None:
        raise ArgumentError("stream is for communicators of a GPU; this one works on cpu")
    where = getattr(stream, "device_id", None)  # CuPy; -1 when it goes with any device
    if where is None:
        where = getattr(getattr(stream, "device", None), "index", None)  # torch
    if where is not None and where not in (-1, device.index):
        raise WrongDeviceError(
            f"stream is of cuda:{where}, this communicator works on {device}; give one of {device}"
        )
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    protocol = getattr(stream, "__cuda_stream__", None)
    try:
        handle = operator.index(stream if protocol is None else protocol()[1])
    except TypeError:
        handle = -1
    if isinstance(stream, bool) or not 0 <= handle < 2**64:
        raise ArgumentError(
            f"stream={stream!r} is not possible; give the address in an int or a torch or CuPy "
            "stream"
        )
    return handle


def common_stream(streams: list[int | None]) -> int:
    """The one stream all arrays of a call are used on. Raises ArgumentError when they differ."""
    used = [LEGACY_STREAM if one in _LEGACY else one for one in streams if one is not None]
    if len(set(used)) > 1:
        raise ArgumentError(
            "the arrays of the call are used on different streams; make one wait for the others "
            "and give it as stream="
        )
    return used[0] if used else LEGACY_STREAM


class DeviceArray:
    """A result in the library's GPU memory, for whoever reads ``__cuda_array_interface__``.

    Complete when handed out: no stream has to be waited for. BF16, which the interface cannot name,
    is shown as uint16. The memory lives as long as this object and what was made from it.
    """

    def __init__(self, owner: object, pointer: int, numel: int, typestr: str, device: int) -> None:
        self._owner = owner
        self.device = device
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (numel,),
            "typestr": typestr,
            "data": (pointer, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def __len__(self) -> int:
        return int(self.__cuda_array_interface__["shape"][0])


def typestr_of(dtype: str, width: int) -> str:
    """How array interfaces name the type; one they cannot name goes as words of its width."""
    try:
        plain = np.dtype(dtype)
    except TypeError:
        plain = np.dtype(np.void)
    if plain.isbuiltin == 1 and plain.itemsize == width:  # not what ml_dtypes registers
        return plain.str
    return {1: "|u1", 2: "<u2", 4: "<u4", 8: "<u8", 16: "<c16"}[width]


def device_result(
    owner: object, pointer: int, size: int, kind: str, dtype: Any, width: int, device: int
) -> Any:
    """GPU memory of ``owner`` as an array of torch, CuPy or (kind "own") this library."""
    bytes_ = DeviceArray(owner, pointer, size, "|u1", device)
    if kind == "torch":
        torch = sys.modules["torch"]
        if size == 0:
            return torch.empty(0, dtype=dtype, device=f"cuda:{device}")
        return torch.as_tensor(bytes_, device=f"cuda:{device}").view(dtype)
    if kind == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device):
            if size == 0:
                return cupy.empty(0, dtype)
            return cupy.asarray(bytes_).view(dtype)
    return DeviceArray(owner, pointer, size // width, typestr_of(dtype, width), device)
