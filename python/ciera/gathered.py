"""Gathered buffers that the library owns."""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ciera import _native
from ciera.cuda_arrays import typestr_of
from ciera.devices import Device
from ciera.errors import ArgumentError

_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_DLPACK_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_DLPACK_BFLOAT = 4
_DLPACK_CPU, _DLPACK_CUDA = 1, 2


class Element(NamedTuple):
    """An element type: its name as numpy and torch give it ("" when only the width is known)."""

    name: str
    itemsize: int


_OPAQUE = {f"opaque{bits}": bits // 8 for bits in (8, 16, 32, 64, 128)}


def element_of(dtype: Any) -> Element:
    """What "bf16", "bfloat16", a dtype of numpy or torch, or its name, says. Raises ArgumentError.

    The library's own names of opaque elements ("opaque32") have a width and no name.
    """
    if isinstance(dtype, str) and dtype in _OPAQUE:
        return Element("", _OPAQUE[dtype])
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        return Element(str(dtype).removeprefix("torch."), int(dtype.itemsize))
    name = _NAMES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if isinstance(name, str) and name == "bfloat16":
        return Element(name, 2)
    try:
        plain = np.dtype(name)
    except TypeError as error:
        raise ArgumentError(
            f"dtype={dtype!r} is not possible; give bf16, fp16, fp32 or a dtype of numpy or torch"
        ) from error
    if plain.kind not in "biufc" or not plain.isnative:
        raise ArgumentError(f"dtype={dtype!r} is not possible; give plain numbers of this machine")
    return Element(plain.name, plain.itemsize)


class GatheredBuffer:
    """Memory of the library for all ranks' shards of one ``shard_id``, from ``comm.buffer``.

    Pass it as ``out``. It is 1-D and rank-major without gaps: ``numpy.asarray(buffer)``
    (BF16 as uint16), ``torch.from_dlpack(buffer)``, ``cupy.asarray(buffer)`` or
    ``cupy.from_dlpack(buffer)`` lie over it without a copy, and ``array[buffer.slice_of(rank)]`` is
    one rank's part. The memory lives as long as this object or one of those arrays, also beyond
    ``reset`` and ``close``.

    Read all of it whenever no call of the shard is under way. Write to your own part only, and
    gather it in place from then on (pass ``array[buffer.slice_of(comm.rank)]`` as ``shard``). The
    rest is what the next frames are decoded against: what is written there makes later results
    wrong, which ``check_buffers`` finds. On a GPU, work on the stream of the calls.
    """

    def __init__(
        self,
        native: _native.ShardBuffer,
        owner: object,
        shard_id: str | int,
        element: Element,
        device: Device,
    ) -> None:
        self._native = native
        self._owner = weakref.ref(owner)
        self._element = element
        self._device = device
        self.shard_id = shard_id

    @property
    def dtype(self) -> str:
        """The element type's name; "uint64" and so on when the buffer was asked for without one."""
        return self._element.name or f"uint{8 * self._element.itemsize}"

    @property
    def device(self) -> str:
        """Where it lies: "cpu" or "cuda:N"."""
        return str(self._device)

    @property
    def numels(self) -> tuple[int, ...]:
        """Values of each rank."""
        return tuple(self._native.numels)

    @property
    def attached(self) -> bool:
        """False after ``reset`` or ``close``: then it is plain memory, and refused as ``out``."""
        return self._native.attached

    def slice_of(self, rank: int) -> slice:
        """Where the part of ``rank`` lies in an array over the whole buffer."""
        numels = self.numels
        try:
            plain = operator.index(rank)
        except TypeError:
            plain = -1
        if not 0 <= plain < len(numels):
            raise ArgumentError(
                f"shard {self.shard_id!r}: rank {rank!r} is not possible; give 0 to "
                f"{len(numels) - 1}"
            )
        start = sum(numels[:plain])
        return slice(start, start + numels[plain])

    def belongs_to(self, owner: object) -> bool:
        """Whether ``owner`` made it."""
        return self._owner() is owner

    @property
    def native(self) -> _native.ShardBuffer:
        """What holds the memory."""
        return self._native

    @property
    def element(self) -> Element:
        """What it holds."""
        return self._element

    def __len__(self) -> int:
        return self._native.place[1] // self._element.itemsize

    def __repr__(self) -> str:
        state = "" if self.attached else ", let go"
        return (
            f"GatheredBuffer(shard_id={self.shard_id!r}, dtype={self.dtype}, numels={self.numels}, "
            f"device={self._device}{state})"
        )

    def _interface(self) -> dict[str, Any]:
        return {
            "shape": (len(self),),
            "typestr": typestr_of(self.dtype, self._element.itemsize),
            "data": (self._native.place[0], False),
            "strides": None,
            "version": 3,
        }

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self._device.index is not None:
            raise AttributeError("the buffer is on a GPU; it has __cuda_array_interface__")
        return self._interface()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._device.index is None:
            raise AttributeError("the buffer is in host memory; it has __array_interface__")
        return {**self._interface(), "stream": None}

    def __dlpack_device__(self) -> tuple[int, int]:
        index = self._device.index
        return (_DLPACK_CPU, 0) if index is None else (_DLPACK_CUDA, index)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The memory itself. What calls have written is complete for every stream."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("the buffer is shared where it lies; copy the array made from it")
        width = self._element.itemsize
        kind = np.dtype(typestr_of(self.dtype, width)).kind
        code = _DLPACK_BFLOAT if self.dtype == "bfloat16" else _DLPACK_CODES.get(kind)
        if code is None:
            raise BufferError(f"DLPack has no {self.dtype}")
        return _native.export_dlpack(
            self._native.place[0],
            len(self),
            self.__dlpack_device__(),
            (code, 8 * width),
            self._native,
            max_version is not None and max_version[0] >= 1,
        )


def lengths(numel: Any, world_size: int) -> list[int] | None:
    """The length of every rank's shard: ``numel`` of each, or of all alike; None stays None."""
    if numel is None:
        return None
    if isinstance(numel, Sequence | np.ndarray) and not isinstance(numel, str):
        return [_length(one) for one in numel]
    return [_length(numel)] * world_size


def _length(numel: Any) -> int:
    try:
        plain = operator.index(numel)
    except TypeError:
        plain = -1
    if isinstance(numel, bool) or not 0 <= plain < 2**63:
        raise ArgumentError(
            f"numel={numel!r} is not possible; give the values of every rank: one int for all, or "
            "a sequence of one int a rank"
        )
    return plain
