"""Seeded inputs that golden frames, the size table and comparisons are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from wire_reference import WORDS

MANTISSA = {"bf16": 7, "fp16": 10, "fp32": 23}
KINDS = ("weights", "constant", "random", "nan")


def moving(dtype: str, numel: int, step: int) -> npt.NDArray[Any]:
    """As ``words("weights")``, but small values move often and far, large ones seldom."""
    start = words("weights", dtype if dtype in MANTISSA else "fp32", numel, 0)
    index = np.arange(numel, dtype=np.uint64)
    noise = (index + np.uint64(step * numel + 1)) * np.uint64(0xD1B54A32D192ED03)
    noise ^= noise >> np.uint64(31)
    noise *= np.uint64(0xBF58476D1CE4E5B9)
    noise ^= noise >> np.uint64(29)
    mantissa = MANTISSA.get(dtype, 23)
    small = np.uint64(12) - (start.astype(np.uint64) >> np.uint64(mantissa)) % np.uint64(12)
    far = noise % np.uint64(1009) < small * small
    near = noise >> np.uint64(12) & np.uint64(15) < small
    size = np.where(far, noise >> np.uint64(20) & np.uint64(63), near.astype(np.uint64))
    down = (noise >> np.uint64(40) & np.uint64(1)).astype(bool)
    size = size * np.uint64(step > 0)
    width = np.uint64((1 << 8 * WORDS[dtype].itemsize) - 1)
    moved = np.where(down, start.astype(np.uint64) - size, start.astype(np.uint64) + size)
    return (moved & width).astype(WORDS[dtype])


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
    mantissa = MANTISSA[dtype]
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
