"""Views of callers' arrays as contiguous bytes, whatever framework they come from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ciera.cuda_arrays import GpuArray, device_result, gpu_array, is_cupy, torch_array
from ciera.devices import CPU, Device
from ciera.errors import ArgumentError, CieraError, WrongDeviceError
from ciera.gathered import GatheredBuffer

_FLOATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_WIDTHS = {"bf16": 2, "fp16": 2, "fp32": 4}
DTYPES = tuple(_WIDTHS)

Bytes = npt.NDArray[np.uint8]


class Maker(NamedTuple):
    """Makes results of the type of a caller's array, without holding on to that array."""

    dtype: Any  # numpy's or torch's; of the library's own GPU arrays the name
    itemsize: int
    torch_device: Any = None  # of a torch tensor
    gpu_kind: str | None = None  # "torch", "cupy" or "own", on a GPU

    @property
    def in_torch_memory(self) -> bool:
        """Whether results are torch tensors in host memory."""
        return self.torch_device is not None and self.gpu_kind is None

    def array(self, data: Any, owner: object, device: Device) -> Any:
        """An array over ``data``, which is ``owner``'s, without a copy where it can be."""
        if self.gpu_kind is not None:
            assert device.index is not None
            pointer, size = data
            return device_result(
                owner, pointer, size, self.gpu_kind, self.dtype, self.itemsize, device.index
            )
        if self.torch_device is not None:
            torch = sys.modules["torch"]
            if not data.size:
                return self.empty(0)
            # A copy: torch cannot resize, so not free either, the storage of foreign memory.
            return torch.from_numpy(data).clone().view(self.dtype)
        return data.view(self.dtype)

    def empty(self, numel: int) -> Any:
        """A new torch tensor in host memory."""
        return sys.modules["torch"].empty(numel, dtype=self.dtype)


class View(NamedTuple):
    """A caller's 1-D array: bytes, wire dtype, length, and how to make a result of its type."""

    data: Bytes | tuple[int, int]  # address and bytes of what is no buffer of Python's
    dtype: str
    name: str  # of the element type
    numel: int
    keep: Any  # holds the memory
    maker: Maker
    gpu: GpuArray | None = None


def is_torch(array: object) -> bool:
    """True for a torch tensor; torch itself is never imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def wire_dtype(name: str, width: int, override: str | None) -> str:
    """How elements of that name and width travel. Raises ArgumentError."""
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


def _torch_memory(tensor: Any) -> tuple[int, int]:
    """Address and bytes of a tensor in host memory; torch is not asked for an array.

    An array of numpy's would make the storage one that cannot be resized, for good.
    """
    if tensor.dim() != 1 or not tensor.is_contiguous():
        raise ArgumentError(
            f"a contiguous 1-D view is needed, this has shape {tuple(tensor.shape)} and stride "
            f"{tensor.stride()}; pass tensor.contiguous().view(-1)"
        )
    size = tensor.numel() * tensor.element_size()
    return (tensor.data_ptr() if size else 0, size)


def require_plain_tensor(tensor: Any) -> None:
    """Raises ArgumentError for a tensor whose elements do not lie in memory one after the other."""
    torch = sys.modules["torch"]
    if tensor.device.type == "meta":
        raise WrongDeviceError(
            "the tensor is on meta, so it has no data; give it some first (module.to_empty, or a "
            "real tensor)"
        )
    if isinstance(tensor, torch._subclasses.FakeTensor):
        raise ArgumentError("a fake tensor has no data; call outside of tracing, with a real one")
    if tensor.layout != torch.strided:
        raise ArgumentError(f"a {tensor.layout} tensor is not contiguous; pass tensor.to_dense()")
    if tensor.is_quantized:
        raise ArgumentError("a quantized tensor cannot be gathered; pass tensor.int_repr()")
    if tensor.is_conj() or tensor.is_neg():
        raise ArgumentError("the tensor is a lazy view; pass tensor.resolve_conj().resolve_neg()")
    size = tensor.numel() * tensor.element_size()
    held = tensor.untyped_storage().nbytes()
    if size and tensor.storage_offset() * tensor.element_size() + size > held:
        raise ArgumentError(
            f"the tensor's storage was freed: it holds {held} bytes where the tensor needs {size}; "
            "allocate it first (untyped_storage().resize_)"
        )
    if size and tensor.data_ptr() == 0:
        raise ArgumentError(
            f"this {type(tensor).__name__} has no memory of its own; pass the tensor inside "
            "(of a DTensor, to_local())"
        )


def _numpy_of(array: Any, writable: bool) -> npt.NDArray[Any]:
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentError("a masked array would lose its mask; pass array.filled() or array.data")
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "__dlpack__"):
        return _foreign("DLPack", array, _from_dlpack if writable else np.from_dlpack)
    for protocol in ("__array_interface__", "__array_struct__"):
        if hasattr(array, protocol):
            return _foreign(protocol, array, np.asarray)
    try:
        return np.asarray(memoryview(array))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"a {type(array).__name__} is no array; pass numpy, torch, DLPack or a buffer"
        ) from error


def _from_dlpack(array: Any) -> npt.NDArray[Any]:
    """The array's own memory: what is written to a copy would be lost."""
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        return np.from_dlpack(array)  # never copies
    return np.from_dlpack(array, copy=False)


def _foreign(
    protocol: str, array: Any, reader: Callable[[Any], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """What an array shows of itself; whatever goes wrong in it is its caller's mistake."""
    try:
        plain = reader(array)
    except Exception as error:
        raise ArgumentError(
            f"the array cannot be read through {protocol} ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(plain, np.ndarray) or (plain.size and not plain.ctypes.data):
        raise ArgumentError(f"{protocol} of a {type(array).__name__} shows no memory")
    return plain


def _wrong_device(array: Any, where: str, device: Device) -> WrongDeviceError:
    move = f"array.to({str(device)!r})" if is_torch(array) else f"a copy of it on {device}"
    other = {"cpu": "cpu", "a GPU": "cuda"}.get(where, where if where[:5] == "cuda:" else None)
    remedy = f"pass {move}" + (f", or make the communicator with device={other!r}" if other else "")
    return WrongDeviceError(
        f"the {type(array).__name__} is on {where}, this communicator works on {device}; {remedy}"
    )


def _torch_view(tensor: Any, device: Device, dtype: str | None, writable: bool) -> View:
    try:
        require_plain_tensor(tensor)
        where = str(tensor.device)
        if where != str(device):
            raise _wrong_device(tensor, where, device)
        if device != CPU:
            return _gpu_view(torch_array(tensor), tensor, dtype, writable)
        memory = _torch_memory(tensor)
    except (RuntimeError, NotImplementedError, TypeError) as error:  # torch's own refusals
        text = str(error).split("\n")[0]
        raise ArgumentError(f"torch gives no access to the tensor's memory ({text})") from error
    name = str(tensor.dtype).removeprefix("torch.")
    width = tensor.element_size()
    maker = Maker(tensor.dtype, width, torch_device=tensor.device)
    return View(memory, wire_dtype(name, width, dtype), name, tensor.numel(), tensor, maker)


def _gpu_view(array: GpuArray, like: Any, dtype: str | None, writable: bool) -> View:
    array.require_plain(writable)
    wire = wire_dtype(array.dtype, array.itemsize, dtype)
    kind = "torch" if is_torch(like) else "cupy" if is_cupy(like) else "own"
    element = array.dtype if kind == "own" else like.dtype
    return View(
        (array.pointer, array.numel * array.itemsize),
        wire,
        array.dtype,
        array.numel,
        array.owner,
        Maker(element, array.itemsize, gpu_kind=kind),
        gpu=array,
    )


def _gathered_view(
    buffer: GatheredBuffer, device: Device, dtype: str | None, writable: bool
) -> View:
    if writable and not buffer.attached:
        raise ArgumentError(
            f"the buffer of shard {buffer.shard_id!r} was let go by reset or close; ask "
            "comm.buffer for a new one (numpy.asarray of the old one still is memory to gather to)"
        )
    if buffer.device != str(device):
        raise _wrong_device(buffer, buffer.device, device)
    name, width = buffer.element
    wire = wire_dtype(buffer.dtype, width, dtype)
    if device == CPU:
        plain = np.asarray(buffer)
        maker = Maker(plain.dtype, width)
        return View(plain.view(np.uint8), wire, name, plain.size, buffer.native, maker)
    gpu = gpu_array(buffer, None)
    assert gpu is not None
    maker = Maker(buffer.dtype, width, gpu_kind="own")
    return View(buffer.native.place, wire, name, len(buffer), buffer.native, maker, gpu=gpu)


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
    try:
        return _view_of(array, device, dtype, writable, stream)
    except (CieraError, MemoryError):
        raise
    except Exception as error:  # out of the array's own code
        raise ArgumentError(
            f"the {type(array).__name__} cannot be read ({type(error).__name__}: {error})"
        ) from error


def _view_of(
    array: Any, device: Device, dtype: str | None, writable: bool, stream: int | None
) -> View:
    if is_torch(array):
        return _torch_view(array, device, dtype, writable)
    if isinstance(array, GatheredBuffer):
        return _gathered_view(array, device, dtype, writable)
    gpu = gpu_array(array, stream)
    if gpu is not None:
        if device == CPU or gpu.device not in (None, device.index):
            raise _wrong_device(
                array, "a GPU" if gpu.device is None else f"cuda:{gpu.device}", device
            )
        return _gpu_view(gpu, array, dtype, writable)
    plain = _numpy_of(array, writable)
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
        seen = "" if plain is array else " as it shows itself; pass the numpy or torch array"
        raise ArgumentError(f"out is read-only{seen}")
    if not plain.dtype.isnative:
        raise ArgumentError(f"the byte order of {plain.dtype} is not this machine's")
    name, width = plain.dtype.name, plain.dtype.itemsize
    maker = Maker(plain.dtype, width)
    return View(
        plain.view(np.uint8), wire_dtype(name, width, dtype), name, plain.size, plain, maker
    )
