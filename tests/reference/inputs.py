"""Seeded inputs that golden frames, the size table and comparisons are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from wire_reference import WORDS

KINDS = ("weights", "constant", "random", "nan")


def words(kind: str, dtype: str, numel: int, step: int) -> npt.NDArray[Any]:
    """Bit patterns; from step to step every 89th word moves by two units in the last place.

    Integer arithmetic only, so that every NumPy version on every machine gives the same bits.
    """
    width = WORDS[dtype].itemsize * 8
    index = np.arange(numel, dtype=np.uint64)
    noise = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    noise ^= noise >> np.uint64(29)
    noise *= np.uint64(0xBF58476D1CE4E5B9)
    noise ^= noise >> np.uint64(32)
    mantissa = {"bf16": 7, "fp16": 10, "fp32": 23}[dtype]
    top = {"bf16": 0xFF, "fp16": 0x1F, "fp32": 0xFF}[dtype]
    if kind == "constant":
        value = np.full(numel, top // 2 << mantissa, np.uint64)
    elif kind == "random":
        value = noise & np.uint64((1 << width) - 1)
    elif kind == "nan":
        value = (noise & np.uint64((1 << width) - 1)) | np.uint64(top << mantissa)
    else:
        # Exponents fall off as magnitudes of a normal distribution do: trailing zeros of noise.
        low = noise & -noise.view(np.int64).astype(np.uint64)
        fall = np.log2(np.maximum(low, 1).astype(np.float64)).astype(np.uint64) % np.uint64(12)
        rest = noise >> np.uint64(20) & np.uint64((1 << mantissa) - 1)
        sign = noise >> np.uint64(63) << np.uint64(width - 1)
        value = sign | (np.uint64(top // 2 + 1) - fall) << np.uint64(mantissa) | rest
    moved = (index % np.uint64(89) < step).astype(np.uint64) * np.uint64(2 * step)
    return ((value + moved) & np.uint64((1 << width) - 1)).astype(WORDS[dtype])
