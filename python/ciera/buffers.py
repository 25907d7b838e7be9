"""Views of callers' arrays as contiguous bytes, whatever framework they come from."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ciera.cuda_arrays import GpuArray, device_result, gpu_array, torch_array
from ciera.devices import CPU, Device
from ciera.errors import ArgumentError, WrongDeviceError

_FLOATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_WIDTHS = {"bf16": 2, "fp16": 2, "fp32": 4}
DTYPES = tuple(_WIDTHS)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class View:
    """A caller's 1-D array: bytes, wire dtype, length, and how to make a result of its type."""

    data: Bytes | tuple[int, int]  # of GPU memory: address and bytes
    dtype: str
    numel: int
    like: Any  # the array itself
    gpu: GpuArray | None = None

    def result(self, data: Any, owner: object, device: Device) -> Any:
        """An array of the caller's type over ``data``, which is ``owner``'s, without a copy."""
        if self.gpu is not None:
            assert device.index is not None
            pointer, size = data
            name, width = self.gpu.dtype, self.gpu.itemsize
            return device_result(owner, pointer, size, self.like, name, width, device.index)
        if is_torch(self.like):
            torch = sys.modules["torch"]
            if data.size == 0:  # numpy's stride 0 cannot be viewed as wider elements
                return torch.empty(0, dtype=self.like.dtype)
            return torch.from_numpy(data).view(self.like.dtype)
        return data.view(self.like.dtype)


def is_torch(array: object) -> bool:
    """True for a torch tensor; torch itself is never imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _wire_dtype(name: str, width: int, override: str | None) -> str:
    if override is not None:
        if not isinstance(override, str) or override not in _WIDTHS:
            raise ArgumentError(f"unknown dtype {override!r}; give one of {', '.join(_WIDTHS)}")
        if _WIDTHS[override] != width:
            raise ArgumentError(
                f"dtype={override!r} needs {_WIDTHS[override]}-byte elements, these have {width}"
            )
        return override
    if name in _FLOATS:
        return _FLOATS[name]
    if width not in (1, 2, 4, 8, 16):
        raise ArgumentError(f"elements of {width} bytes ({name}) are not supported")
    return f"opaque{8 * width}"


def _torch_bytes(tensor: Any, writable: bool) -> Bytes:
    torch = sys.modules["torch"]
    if tensor.dim() != 1 or not tensor.is_contiguous():
        raise ArgumentError(
            f"a contiguous 1-D view is needed, this has shape {tuple(tensor.shape)} and stride "
            f"{tensor.stride()}; pass tensor.contiguous().view(-1)"
        )
    plain = tensor.detach()
    if plain.numel() == 0:
        return np.empty(0, np.uint8)
    data: Bytes = plain.view(torch.uint8).numpy()
    return data


def _numpy_of(array: Any) -> npt.NDArray[Any]:
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "__dlpack__"):
        try:
            return np.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError) as error:
            raise ArgumentError(f"the array cannot be read through DLPack ({error})") from error
    try:
        return np.asarray(memoryview(array))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"a {type(array).__name__} is no array; pass numpy, torch, DLPack or a buffer"
        ) from error


def _wrong_device(array: Any, where: str, device: Device) -> WrongDeviceError:
    move = f"array.to({str(device)!r})" if is_torch(array) else f"a copy of it on {device}"
    other = {"cpu": "cpu", "a GPU": "cuda"}.get(where, where if where[:5] == "cuda:" else None)
    remedy = f"pass {move}" + (f", or make the communicator with device={other!r}" if other else "")
    return WrongDeviceError(
        f"the {type(array).__name__} is on {where}, this communicator works on {device}; {remedy}"
    )


def _torch_view(tensor: Any, device: Device, dtype: str | None, writable: bool) -> View:
    where = str(tensor.device)
    if where != str(device):
        raise _wrong_device(tensor, where, device)
    if device != CPU:
        return _gpu_view(torch_array(tensor), tensor, dtype, writable)
    name = str(tensor.dtype).removeprefix("torch.")
    wire = _wire_dtype(name, tensor.element_size(), dtype)
    return View(_torch_bytes(tensor, writable), wire, tensor.numel(), tensor)


def _gpu_view(array: GpuArray, like: Any, dtype: str | None, writable: bool) -> View:
    array.require_plain(writable)
    wire = _wire_dtype(array.dtype, array.itemsize, dtype)
    return View((array.pointer, array.numel * array.itemsize), wire, array.numel, like, gpu=array)


def view_of(
    array: Any,
    *,
    device: Device = CPU,
    dtype: str | None = None,
    writable: bool = False,
    stream: int | None = None,
) -> View:
    """Borrows a 1-D contiguous array.

    ``dtype`` ("bf16", "fp16", "fp32") says what the bits are when the array's own type does not
    (uint16 holding BF16). Raises ArgumentError for anything else than a contiguous 1-D array, and
    WrongDeviceError for one that does not lie on ``device``. ``stream``: a CUDA handle, the one
    that a DLPack array is made ready on.
    """
    if is_torch(array):
        return _torch_view(array, device, dtype, writable)
    gpu = gpu_array(array, stream)
    if gpu is not None:
        if device == CPU or gpu.device not in (None, device.index):
            raise _wrong_device(
                array, "a GPU" if gpu.device is None else f"cuda:{gpu.device}", device
            )
        return _gpu_view(gpu, array, dtype, writable)
    plain = _numpy_of(array)
    if plain.dtype.hasobject:
        raise ArgumentError("an array of Python objects cannot be gathered")
    if device != CPU:
        raise _wrong_device(array, "cpu", device)
    if plain.ndim != 1 or not plain.flags.c_contiguous:
        raise ArgumentError(
            f"a contiguous 1-D view is needed, this has shape {plain.shape} and strides "
            f"{plain.strides}; pass numpy.ascontiguousarray(a).reshape(-1)"
        )
    if writable and not plain.flags.writeable:
        raise ArgumentError("out is read-only")
    if not plain.dtype.isnative:
        raise ArgumentError(f"the byte order of {plain.dtype} is not this machine's")
    wire = _wire_dtype(plain.dtype.name, plain.dtype.itemsize, dtype)
    return View(plain.view(np.uint8), wire, plain.size, plain)
