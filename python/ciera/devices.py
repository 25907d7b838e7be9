"""Names of devices: where shards lie and the codec runs."""

from __future__ import annotations

import operator
import re
import sys
from dataclasses import dataclass
from typing import Any

from ciera import _native
from ciera.errors import ArgumentError

_MOST = 2**31 - 1


@dataclass(frozen=True)
class Device:
    """``index``: the ordinal of a GPU; None is host memory."""

    index: int | None

    def __str__(self) -> str:
        return "cpu" if self.index is None else f"cuda:{self.index}"


CPU = Device(None)


def _current() -> int:
    """The GPU that "cuda" means: torch's current one where torch has GPUs, else the first."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.current_device())
    return 0


def parse_device(device: Any) -> Device:
    """What None, "cpu", "cuda", "cuda:1", 1 or a torch.device names. Raises ArgumentError."""
    problem = f'device={device!r} is not possible; give "cpu", "cuda", "cuda:N", an int or None'
    if device is None:
        return CPU
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(device, torch.device):
        device = str(device)
    if isinstance(device, str):
        if device == "cpu":
            return CPU
        match = re.fullmatch(r"cuda(?::([0-9]{1,10}))?", device)
        if match is None:
            raise ArgumentError(problem)
        index = _current() if match[1] is None else int(match[1])
    else:
        try:
            index = -1 if isinstance(device, bool) else operator.index(device)
        except TypeError as error:
            raise ArgumentError(problem) from error
    if not 0 <= index <= _MOST:
        raise ArgumentError(problem)
    return Device(index)


def cuda_support() -> tuple[bool, str]:
    """Whether a GPU can be used: which, or why not."""
    return _native.cuda_support()
