"""Views of callers' arrays as contiguous bytes, whatever framework they come from."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ciera.errors import ArgumentError

_FLOATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_WIDTHS = {"bf16": 2, "fp16": 2, "fp32": 4}
DTYPES = tuple(_WIDTHS)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class View:
    """A caller's 1-D array: bytes, wire dtype, length, and how to make a result of its type."""

    data: Bytes
    dtype: str
    numel: int
    like: Any  # the array itself

    def result(self, data: Bytes) -> Any:
        """An array of the caller's type over ``data``, without a copy."""
        if is_torch(self.like):
            torch = sys.modules["torch"]
            flat = torch.from_numpy(data)
            return flat.view(self.like.dtype)
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
    if tensor.device.type != "cpu":
        raise ArgumentError(f"the tensor is on {tensor.device}; this backend takes CPU memory")
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


def view_of(array: Any, *, dtype: str | None = None, writable: bool = False) -> View:
    """Borrows a 1-D contiguous array.

    ``dtype`` ("bf16", "fp16", "fp32") says what the bits are when the array's own type does not
    (uint16 holding BF16). Raises ArgumentError for anything else than a contiguous 1-D CPU array.
    """
    if is_torch(array):
        name = str(array.dtype).removeprefix("torch.")
        wire = _wire_dtype(name, array.element_size(), dtype)
        return View(_torch_bytes(array, writable), wire, array.numel(), array)
    plain = _numpy_of(array)
    if plain.dtype.hasobject:
        raise ArgumentError("an array of Python objects cannot be gathered")
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
