"""Writes two steps of a trace as the file that gpu_codec_bench reads, or Gaussian ones.

python bench/gpu_codec_bench.py TRACE.npz|gaussian STEPS.bin [--shard expert_ffn] [--step 1]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np


def steps_of(source: str, shard: str, step: int) -> np.ndarray:
    """Two consecutive steps of BF16 words, shape (2, values)."""
    if source == "gaussian":
        normal = np.random.default_rng(1).normal(0, 0.02, 1 << 22).astype(np.float32)
        words = (normal.view(np.uint32) >> 16).astype(np.uint16)
        moved = words.copy()
        moved[::701] += 1
        return np.stack([words, moved])
    words = np.bitwise_xor.accumulate(np.load(source)[shard], axis=0)
    return words[step : step + 2]


def main() -> None:
    """Parses arguments, writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("output", type=Path)
    parser.add_argument("--shard", default="expert_ffn")
    parser.add_argument("--step", type=int, default=1)
    options = parser.parse_args()
    words = steps_of(options.source, options.shard, options.step)
    with options.output.open("wb") as file:
        file.write(np.uint64(words.shape[1]).tobytes())
        file.write(words.astype(np.uint16).tobytes())


if __name__ == "__main__":
    main()
