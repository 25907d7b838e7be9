"""The committed table of frame sizes: a change of ratio is a diff.

python bench/sizes.py writes bench/sizes.csv, --check compares it with what the library makes now.
"""

from __future__ import annotations

import csv
import difflib
import io
import sys
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/reference"))

import inputs  # noqa: E402
import wire_reference as wire  # noqa: E402
from ciera import _native  # noqa: E402

TABLE = Path(__file__).with_name("sizes.csv")
COLUMNS = ("input", "dtype", "numel", "mode", "coder", "block_size", "step", "frame_bytes")
DELTA_MODES = ("exponent-delta", "word-delta")


def rows() -> list[tuple[str | int, ...]]:
    """Frame bytes of two steps for each input, dtype, mode and coder."""
    found: list[tuple[str | int, ...]] = []
    for kind in inputs.KINDS:
        for dtype in ("bf16", "fp16", "fp32"):
            for mode in ("exponent-only", "exponent-block"):
                for coder in ("rans", "raw"):
                    for block_size in (64, 512):
                        found += sizes(kind, dtype, 100_000, mode, coder, block_size)
    for dtype in ("bf16", "fp16", "fp32", "opaque16", "opaque32", "opaque64"):
        for mode in DELTA_MODES if dtype in wire.FLOATS else ("word-delta",):
            for effort in ("default", "high"):
                found += delta_sizes(dtype, 100_000, mode, effort)
    for mode in ("exponent-block", "exponent-delta"):
        found.append(same_size("bf16", 100_000, mode))
    return found


def same_size(dtype: str, numel: int, mode: str) -> tuple[str | int, ...]:
    """The row of an unchanged step whose words every receiver holds."""
    words = inputs.moving(dtype, numel, 1).tobytes()
    frame, _ = _native.encode_frame(
        words, mode=mode, coder="rans", dtype=dtype, block_size=512, shard_id="sizes",
        base_epoch=2, base_digest=1, hashes=b"", words=words,
    )  # fmt: skip
    return ("held", dtype, numel, mode, "rans", 512, 2, len(frame))


def delta_sizes(dtype: str, numel: int, mode: str, effort: str) -> list[tuple[str | int, ...]]:
    """The rows of a key, a delta and an unchanged step; the coder column names the effort."""
    found: list[tuple[str | int, ...]] = []
    reference, digest = b"", 0
    for step, data in enumerate((0, 1, 1)):
        words = inputs.moving(dtype, numel, data)
        frame, _ = _native.encode_frame(
            words.tobytes(),
            mode=mode,
            coder="rans",
            dtype=dtype,
            block_size=512,
            shard_id="sizes",
            base_epoch=step,
            base_digest=digest,
            hashes=b"",
            reference=reference,
            effort=effort,
        )
        found.append(("moving", dtype, numel, mode, f"rans {effort}", 512, step, len(frame)))
        digest = int.from_bytes(frame[56:64], "little")
        in_words = mode == "word-delta"
        reference = words.tobytes() if in_words else wire.split(words, dtype)[0].tobytes()
    return found


def sizes(
    kind: str, dtype: str, numel: int, mode: str, coder: str, block_size: int
) -> list[tuple[str | int, ...]]:
    """The rows of two consecutive steps."""
    found: list[tuple[str | int, ...]] = []
    hashes, digest, epoch = b"", 0, 0
    for step in range(2):
        frame, hashes = _native.encode_frame(
            inputs.words(kind, dtype, numel, step).tobytes(),
            mode=mode,
            coder=coder,
            dtype=dtype,
            block_size=block_size,
            shard_id="sizes",
            base_epoch=epoch,
            base_digest=digest,
            hashes=hashes,
        )
        found.append((kind, dtype, numel, mode, coder, block_size, step, len(frame)))
        if mode == "exponent-block":
            digest, epoch = int.from_bytes(frame[56:64], "little"), step + 1
    return found


@click.command()
@click.option("--check", is_flag=True, help="Compare instead of writing; exit 1 on a difference.")
def main(check: bool) -> None:
    """Write or check the table of frame sizes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows())
    if not check:
        TABLE.write_text(text.getvalue())
        return
    committed = TABLE.read_text()
    if committed != text.getvalue():
        lines = difflib.unified_diff(
            committed.splitlines(), text.getvalue().splitlines(), "committed", "now", lineterm=""
        )
        click.echo("\n".join(lines))
        sys.exit(1)
    click.echo(f"{len(committed.splitlines()) - 1} frame sizes as committed")


if __name__ == "__main__":
    main()
