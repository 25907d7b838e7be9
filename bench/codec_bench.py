"""Host codec bench: GB/s and bytes on real steps, beside memcpy, zstd -1 and lz4 in the same run.

Build first (`make native-tests`), then: python bench/codec_bench.py TRACE.npz [TRACE.npz ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import lz4.block
import numpy as np
import zstandard
from ciera.trace import load_trace
from rich.console import Console
from rich.table import Table

BINARY = Path(__file__).parents[1] / "build/tests/bench/codec_bench"
MODES = ("exponent-only", "exponent-block", "exponent-delta", "word-delta", "word-delta high")
BLOCK = 512


def entropy_bits(symbols: Any) -> float:
    counts = np.bincount(symbols.reshape(-1), minlength=256)
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum())


def changed_exponents(words: Any) -> tuple[Any, int]:
    """Exponents of the changed blocks of all steady steps, and how many blocks changed."""
    exponents = (words >> 7 & 0xFF).astype(np.uint8)
    kept, blocks = [], 0
    for old, new in pairwise(exponents):
        starts = np.arange(0, len(new), BLOCK)
        moved = np.add.reduceat(old != new, starts) > 0
        blocks += int(moved.sum())
        kept.append(new[np.repeat(moved, BLOCK)[: len(new)]])
    return kept, blocks


def formula_bytes(words: Any) -> float:
    """S_sm + S_bm + q S_e of the paper, S_e at the order-0 entropy of what is sent, all steps."""
    kept, _ = changed_exponents(words)
    steps, numel = len(words) - 1, words.shape[1]
    bitmap = (numel + 8 * BLOCK - 1) // (8 * BLOCK)
    return steps * (numel + bitmap) + sum(len(e) * entropy_bits(e) / 8 for e in kept if len(e))


def run(path: str, numel: int, name: str, threads: int, seconds: float) -> dict[str, Any]:
    mode, _, effort = name.partition(" ")
    command = [str(BINARY), path, "bf16", str(numel), mode, "rans", str(BLOCK)]
    done = subprocess.run(
        [*command, str(threads), str(seconds), effort or "default"],
        check=True,
        capture_output=True,
        text=True,
    )
    return dict(json.loads(done.stdout))


def best_of(body: Callable[[], Any], seconds: float) -> float:
    """Median seconds of one call."""
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        body()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def general(words: Any, seconds: float) -> dict[str, tuple[int, float, float]]:
    """name -> (bytes, encode s, decode s) of general compressors over the steady steps."""
    steps = [row.tobytes() for row in words[1:]]
    zstd, unzstd = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    coders = {
        "zstd -1": (zstd.compress, unzstd.decompress),
        "lz4": (lz4.block.compress, lz4.block.decompress),
    }
    results = {}
    for name, (encode, decode) in coders.items():
        coded = [encode(step) for step in steps]
        results[name] = (
            sum(len(one) for one in coded),
            best_of(lambda encode=encode: [encode(step) for step in steps], seconds),
            best_of(lambda decode=decode, coded=coded: [decode(one) for one in coded], seconds),
        )
    return results


def bench_trace(trace: Path, shard: str, seconds: float, table: Table) -> list[dict[str, Any]]:
    words = load_trace(trace, dtype="bf16").shards[shard]
    raw = words[1:].nbytes
    rows: list[dict[str, Any]] = []
    with tempfile.NamedTemporaryFile() as file:
        file.write(words.tobytes())
        file.flush()
        for threads in sorted({1, os.cpu_count() or 1}):
            for mode in MODES:
                one = run(file.name, words.shape[1], mode, threads, seconds)
                rows.append({"trace": trace.name, "name": mode, "threads": threads, **one})
    copy = rows[0]["memcpy_s"]
    rows.append({"trace": trace.name, "name": "memcpy", "threads": 1, "wire_bytes": raw,
                 "encode_s": copy, "decode_s": copy})  # fmt: skip
    for name, (size, encode_s, decode_s) in general(words, seconds).items():
        rows.append({"trace": trace.name, "name": name, "threads": 1, "wire_bytes": size,
                     "encode_s": encode_s, "decode_s": decode_s})  # fmt: skip
    for row in rows:
        row["raw_bytes"] = raw
        expected = formula_bytes(words) if row["name"] == "exponent-block" else None
        row["formula_bytes"] = expected
        table.add_row(
            trace.name,
            row["name"],
            str(row["threads"]),
            f"{raw / row['encode_s'] / 1e9:.2f}",
            f"{raw / row['decode_s'] / 1e9:.2f}",
            f"{row['wire_bytes']:,}",
            f"{raw / row['wire_bytes']:.3f}",
            f"{expected:,.0f}" if expected else "",
            f"{100 * (row['wire_bytes'] / expected - 1):+.2f} %" if expected else "",
        )
    key = rows[0]["key_bytes"] - words.shape[1]
    ideal = words.shape[1] * entropy_bits((words[0] >> 7 & 0xFF).astype(np.uint8)) / 8
    rows.append({"trace": trace.name, "name": "rans over entropy", "ratio": key / ideal})
    return rows


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--shard", default="expert_ffn", show_default=True)
@click.option("--seconds", default=1.0, show_default=True, help="Measured time of each row.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Append JSON lines.")
def main(traces: tuple[Path, ...], shard: str, seconds: float, json_path: Path | None) -> None:
    """Time the host codec on steady steps of one shard of each trace."""
    table = Table(title=f"{shard}, steady steps, GB/s of raw bytes", box=None)
    for name in ("trace", "codec", "threads", "encode", "decode", "bytes", "ratio"):
        table.add_column(name, justify="left" if name in ("trace", "codec") else "right")
    table.add_column("paper's formula", justify="right")
    table.add_column("over it", justify="right")
    rows = [row for trace in traces for row in bench_trace(trace, shard, seconds, table)]
    console = Console(width=130)
    console.print(table)
    for row in rows:
        if row["name"] == "rans over entropy":
            over = 100 * (row["ratio"] - 1)
            console.print(f"{row['trace']}: key frame's exponents, header included, "
                          f"{over:+.2f} % over their order-0 entropy")  # fmt: skip
    if json_path is not None:
        with json_path.open("a") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
