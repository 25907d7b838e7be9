"""Where a replay's words lie: host memory, or a GPU through torch or CuPy."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import Any, Protocol

import numpy as np

from ciera.devices import CPU, Device, parse_device
from ciera.errors import NoDeviceError


class Space(Protocol):
    """Puts words somewhere and compares them there, bit by bit."""

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """What a thread is in while it uses the space."""

    def put(self, words: Any) -> Any:
        """The words there, contiguous."""

    def differences(self, gathered: Any, words: Any) -> int:
        """How many of them differ."""


class _Host:
    def current(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def put(self, words: Any) -> Any:
        return np.ascontiguousarray(words)

    def differences(self, gathered: Any, words: Any) -> int:
        return int(np.count_nonzero(gathered != words))


class _Torch:
    def __init__(self, torch: Any, device: Device) -> None:
        self._torch = torch
        self._device = str(device)

    def current(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def put(self, words: Any) -> Any:
        # Signed: torch does little with uint16 and uint32, and bits are bits.
        signed = np.ascontiguousarray(words).view(f"i{words.dtype.itemsize}")
        return self._torch.from_numpy(signed).to(self._device)

    def differences(self, gathered: Any, words: Any) -> int:
        return int(self._torch.count_nonzero(gathered != words))


class _Cupy:
    def __init__(self, cupy: Any, device: Device) -> None:
        self._cupy = cupy
        self._index = device.index

    def current(self) -> contextlib.AbstractContextManager[Any]:
        there: contextlib.AbstractContextManager[Any] = self._cupy.cuda.Device(self._index)
        return there

    def put(self, words: Any) -> Any:
        return self._cupy.asarray(np.ascontiguousarray(words))

    def differences(self, gathered: Any, words: Any) -> int:
        return int(self._cupy.count_nonzero(gathered != words))


def _imported(name: str, reasons: list[str]) -> Any:
    if importlib.util.find_spec(name) is None:
        reasons.append(f"{name} is not installed")
        return None
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken installation fails in many ways
        reasons.append(f"{name} cannot be imported ({type(error).__name__}: {error})")
        return None


def space_of(device: str) -> Space:
    """The space named by a device. Raises NoDeviceError when neither torch nor CuPy reaches it."""
    place = parse_device(device)
    if place == CPU:
        return _Host()
    reasons: list[str] = []
    torch = _imported("torch", reasons)
    if torch is not None:
        if torch.cuda.is_available():
            return _Torch(torch, place)
        reasons.append("torch sees no GPU")
    cupy = _imported("cupy", reasons)
    if cupy is not None:
        return _Cupy(cupy, place)
    raise NoDeviceError(
        f"{device}: torch or CuPy is needed to put words on a GPU ({', '.join(reasons)}); pip "
        "install 'ciera[cu12]' or 'ciera[cu13]', or use cpu"
    )
