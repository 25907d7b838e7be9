"""What the NumPy codec's modules share."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
LANES = 32
LOW = 1 << 15


class BadFrameError(Exception):
    """Carries the verdict of section 8."""


def reject(condition: Any, verdict: str) -> None:
    if condition:
        raise BadFrameError(verdict)


def normalise(counts: list[int], prob_bits: int) -> list[int]:
    total, wanted = sum(counts), 1 << prob_bits
    freqs = [max(1, (c * wanted + total // 2) // total) if c else 0 for c in counts]
    if sum(freqs) < wanted:
        freqs[freqs.index(max(freqs))] += wanted - sum(freqs)
    while sum(freqs) > wanted:
        freqs[freqs.index(max(freqs))] -= 1
    return freqs
