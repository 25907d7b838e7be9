"""Writes tests/data/golden: frames that must decode, and frames that must fail with a verdict.

Run it only to add frames: what is committed is never edited.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import inputs
import numpy as np
import wire_reference as wire

GOLDEN = Path(__file__).parents[1] / "data/golden"
Params = wire.Params


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def write(folder: str, name: str, frame: bytes, params: Params, **more: Any) -> None:
    path = GOLDEN / folder
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{name}.frame").write_bytes(frame)
    fields = asdict(params)
    if not params.words_held:
        del fields["words_held"]  # which older frames do not have
    (path / f"{name}.json").write_text(json.dumps({"params": fields, **more}, indent=1))


def delta_frame(
    dtype: str, numel: int, coder: str, kind: str = "weights", *, every_block: bool = False
) -> tuple[Any, ...]:
    """(frame, params, words, exponents before) of a second step."""
    first = Params("exponent-block", dtype, 64, numel, "layers.0.up")
    old = inputs.words(kind, dtype, numel, 0)
    key, hashes = wire.encode(old, first, b"", coder)
    params = replace(first, base_epoch=1, base_digest=struct.unpack_from("<Q", key, 56)[0])
    new = inputs.words(kind, dtype, numel, 1)
    if every_block:
        new[::64] ^= new.dtype.type(1 << wire.MANTISSA[dtype])
    frame, _ = wire.encode(new, params, hashes, coder)
    return frame, params, new, wire.split(old, dtype)[0]


def must_decode() -> None:
    for dtype in wire.FLOATS:
        for numel in (0, 1, 7, 1000):
            for coder in ("rans", "raw"):
                params = Params("exponent-only", dtype, 512, numel, -3)
                words = inputs.words("weights", dtype, numel, 0)
                frame, _ = wire.encode(words, params, b"", coder)
                write("must_decode", f"key-{dtype}-{numel}-{coder}", frame, params,
                      words=text(words.tobytes()))  # fmt: skip
        for kind in inputs.KINDS:
            frame, params, words, before = delta_frame(dtype, 1000, "rans", kind)
            write("must_decode", f"delta-{dtype}-{kind}", frame, params,
                  words=text(words.tobytes()), exponents=text(before.tobytes()))  # fmt: skip
    # Parameters that our encoders do not write and decoders must take: short segments, few bits.
    params = Params("exponent-only", "bf16", 512, 5000, "segments")
    words = inputs.words("weights", "bf16", 5000, 0)
    exponents, rest = wire.split(words, "bf16")
    coded = wire.rans_encode(exponents, prob_bits=8, segment_log2=10)
    sections = [(0, wire.rest_bytes(rest, "bf16")), (1, coded)]
    frame = wire.assemble(params, wire.KEY, sections)
    write("must_decode", "key-short-segments", frame, params, words=text(words.tobytes()))
    flags = bytearray(frame)
    flags[10] = 0xA5
    write("must_decode", "key-unknown-must-ignore", wire.with_checksum(bytes(flags)), params,
          words=text(words.tobytes()))  # fmt: skip


def changes_frame(mode: str, dtype: str, effort: str, numel: int = 1000) -> tuple[Any, ...]:
    """(frame, params, words, where the cache stands, cache) of a second step of a delta mode."""
    params = Params(mode, dtype, 64, numel, "layers.0.up", base_epoch=3, base_digest=0x1234567)
    old = inputs.moving(dtype, numel, 0)
    new = inputs.moving(dtype, numel, 1)
    cache = old if mode == "word-delta" else wire.split(old, dtype)[0]
    frame = wire.encode_changes(new, params, cache, "rans", effort)
    assert frame[5] == wire.DELTA, "a golden delta frame"
    return frame, params, new, "reference" if mode == "word-delta" else "exponents", cache


def changes_must_decode() -> None:
    for dtype in wire.DTYPES:
        for effort in ("default", "high"):
            floats = dtype in wire.FLOATS
            for mode in ("exponent-delta", "word-delta") if floats else ("word-delta",):
                frame, params, words, where, cache = changes_frame(mode, dtype, effort)
                write("must_decode", f"{mode}-{dtype}-{effort}", frame, params,
                      words=text(words.tobytes()), **{where: text(cache.tobytes())})  # fmt: skip
    frame, params, words, _, _ = changes_frame("word-delta", "bf16", "default")
    same = wire.encode_changes(words, params, words, "rans")
    write("must_decode", "same-bf16", same, params, words=text(words.tobytes()),
          reference=text(words.tobytes()))  # fmt: skip
    few = words.copy()
    few[70] ^= 1
    stored = wire.encode_changes(few, params, words, "raw")
    write("must_decode", "word-delta-stored", stored, params, words=text(few.tobytes()),
          reference=text(words.tobytes()))  # fmt: skip
    # Marks, several segments, few bits.
    params = replace(params, numel=30_000)
    old, new = (inputs.moving("bf16", 30_000, step) for step in (0, 1))
    bitmap = (0, b"\xff" * 58 + b"\x1f")
    coded = wire.changes.encode(wire.changes.Values("word-delta", "bf16"), old, new, "default",
                                10, 8)  # fmt: skip
    frame = wire.assemble(params, wire.DELTA, [bitmap, (1, coded)])
    write("must_decode", "word-delta-short-segments", frame, params, words=text(new.tobytes()),
          reference=text(old.tobytes()))  # fmt: skip


def changes_must_fail() -> None:
    frame, params, _, _, cache = changes_frame("word-delta", "bf16", "default", 950)
    bitmap, (coder, coded) = wire.read_header(frame, params)[1]
    assert coder == 1, "the faults below need a coded section"
    at = len(frame) - len(coded)
    tables = at + 16 + 12 * coded[11]
    words = word_count_of_changes(coded)
    faults: list[tuple[str, str, Callable[[bytes], bytes]]] = [
        ("values", "bad_table", put(at, "<Q", 949)),
        ("prob-bits", "bad_table", put(at + 8, "<B", 7)),
        ("segment-log2", "bad_table", put(at + 9, "<B", 9)),
        ("form", "bad_table", put(at + 10, "<B", 2)),
        ("quad-contexts", "bad_table", put(at + 11, "<B", 9)),
        ("no-quad-contexts", "bad_table", put(at + 11, "<B", 0)),
        ("value-contexts", "bad_table", put(at + 13, "<B", 13)),
        ("zero", "bad_padding", put(at + 15, "<B", 1)),
        ("last-symbol", "bad_table", put(tables + 1, "<B", 64)),
        ("first-code", "bad_table", put(tables + 2, "<B", 0)),
        ("quad-parameter", "bad_stream", xor(at + 16, 0x40)),
        ("state", "bad_stream", xor(len(frame) - 2 * words - 1, 0x80)),
        ("last-word", "bad_stream", xor(len(frame) - 1, 1)),
        ("epoch", "wrong_base", put(32, "<Q", 2)),
        ("digest", "wrong_base", xor(40, 1)),
        ("spare-bit", "bad_bitmap", xor(81, 0x80)),
        ("three-sections", "bad_sections", put(8, "<B", 3)),
        ("dtype-opaque128", "bad_dtype", put(7, "<B", 20)),
        ("key-of-opaque", "bad_dtype", lambda f: put(7, "<B", 17)(put(5, "<B", 1)(f))),
    ]
    for name, verdict, change in faults:
        write("must_fail", f"changes-{name}", change(frame), params, verdict=verdict,
              reference=text(cache.tobytes()))  # fmt: skip
    short = wire.assemble(params, wire.DELTA, [bitmap, (0, b"abc")])
    write("must_fail", "changes-stored-too-short", short, params, verdict="bad_sizes",
          reference=text(cache.tobytes()))  # fmt: skip
    cut = wire.assemble(params, wire.DELTA, [bitmap, (1, coded[:40])])
    write("must_fail", "changes-table-cut-short", cut, params, verdict="bad_table",
          reference=text(cache.tobytes()))  # fmt: skip
    same = wire.encode_changes(cache, params, cache, "rans")
    write("must_fail", "same-of-another-base", xor(40, 1)(same), params, verdict="wrong_base",
          reference=text(cache.tobytes()))  # fmt: skip
    block = replace(params, mode="exponent-block")
    write("must_fail", "same-exponent-block", put(6, "<B", 2)(same), block, verdict="bad_kind",
          exponents=text(bytes(950)))  # fmt: skip


def held_words(mode: str, dtype: str, numel: int = 1000) -> tuple[Params, np.ndarray, np.ndarray]:
    """(params, words, exponents) of a reference that every receiver holds the words of."""
    words = inputs.moving(dtype, numel, 0)
    params = Params(mode, dtype, 64, numel, "layers.0.up", 3, 0x1234567, words_held=True)
    return params, words, wire.split(words, dtype)[0]


def same_must_decode() -> None:
    for mode in ("exponent-block", "exponent-delta"):
        for dtype in wire.FLOATS:
            params, words, exponents = held_words(mode, dtype)
            write("must_decode", f"same-{mode}-{dtype}", wire.encode_same(params), params,
                  words=text(words.tobytes()), exponents=text(exponents.tobytes()),
                  held=text(words.tobytes()))  # fmt: skip


def same_must_fail() -> None:
    for mode, number in (("exponent-block", 2), ("exponent-delta", 3)):
        params, words, exponents = held_words(mode, "bf16")
        frame = wire.encode_same(params)
        known = {"exponents": text(exponents.tobytes()), "held": text(words.tobytes())}
        name = f"same-{mode}"
        write("must_fail", f"{name}-not-held", frame, replace(params, words_held=False),
              verdict="bad_kind", exponents=known["exponents"])  # fmt: skip
        faults: list[tuple[str, str, Callable[[bytes], bytes]]] = [
            ("epoch", "wrong_base", put(32, "<Q", 2)),
            ("digest", "wrong_base", xor(40, 1)),
            ("other-mode", "bad_mode", put(6, "<B", 5 - number)),
            ("exponent-only", "bad_kind", put(6, "<B", 1)),
            ("opaque", "bad_dtype", put(7, "<B", 17)),
            ("sections", "bad_sections", put(8, "<B", 1)),
        ]
        for fault, verdict, change in faults:
            write("must_fail", f"{name}-{fault}", change(frame), params, verdict=verdict, **known)


def word_count_of_changes(section: bytes) -> int:
    tables = wire.changes.read_tables(section, struct.unpack_from("<Q", section)[0], 16)
    return int(struct.unpack_from("<I", section, tables[-1])[0])


def put(at: int, form: str, number: int) -> Callable[[bytes], bytes]:
    def change(frame: bytes) -> bytes:
        changed = bytearray(frame)
        struct.pack_into(form, changed, at, number)
        return wire.with_checksum(bytes(changed))

    return change


def xor(at: int, bits: int, fix: bool = True) -> Callable[[bytes], bytes]:
    def change(frame: bytes) -> bytes:
        changed = bytearray(frame)
        changed[at] ^= bits
        return wire.with_checksum(bytes(changed)) if fix else bytes(changed)

    return change


def must_fail() -> None:
    frame, params, _, before = delta_frame("bf16", 4000, "rans", every_block=True)
    bitmap, rest, coded = wire.read_header(frame, params)[1]
    at = len(frame) - len(coded[1])
    assert coded[0] == 1, "the faults below need a coded section"
    bits = 96  # where the bitmap lies
    faults: list[tuple[str, str, Callable[[bytes], bytes]]] = [
        ("empty", "truncated", lambda f: b""),
        ("half-a-header", "truncated", lambda f: f[:40]),
        ("no-entries", "truncated", lambda f: f[:70]),
        ("last-byte-missing", "truncated", lambda f: f[:-1]),
        ("a-byte-too-many", "bad_sizes", lambda f: f + b"\0"),
        ("magic", "bad_magic", xor(0, 1)),
        ("version-2", "bad_version", put(4, "<B", 2)),
        ("must-reject-flag", "bad_flags", put(9, "<B", 128)),
        ("kind-same", "bad_kind", put(5, "<B", 3)),
        ("mode-off", "bad_mode", put(6, "<B", 0)),
        ("mode-word-delta", "bad_mode", put(6, "<B", 4)),
        ("delta-exponent-only", "bad_mode", put(6, "<B", 1)),
        ("dtype-opaque", "bad_dtype", put(7, "<B", 17)),
        ("dtype-other", "bad_dtype", put(7, "<B", 2)),
        ("block-size-0", "bad_block_size", put(12, "<I", 0)),
        ("block-size-12", "bad_block_size", put(12, "<I", 12)),
        ("block-size-other", "bad_block_size", put(12, "<I", 128)),
        ("two-sections", "bad_sections", put(8, "<B", 2)),
        ("entry-kind", "bad_sections", put(64, "<B", 3)),
        ("coded-bitmap", "bad_sections", put(65, "<B", 1)),
        ("coder-7", "bad_sections", put(81, "<B", 7)),
        ("coder-nvcomp-ans", "bad_sections", put(81, "<B", 2)),
        ("frame-bytes", "bad_sizes", put(24, "<Q", len(frame) + 1)),
        ("section-beyond", "bad_sizes", put(82, "<I", 0xFFFFFFFF)),
        ("numel-huge", "bad_sizes", put(16, "<Q", 2**63)),
        ("numel-other", "bad_sizes", put(16, "<Q", 4001)),
        ("header-padding", "bad_padding", put(88, "<B", 1)),
        ("section-padding", "bad_padding", put(bits + 8, "<B", 1)),
        ("payload-bit", "bad_checksum", xor(bits + 40, 4, fix=False)),
        ("checksum-bit", "bad_checksum", xor(60, 1, fix=False)),
        ("shard", "wrong_shard", xor(48, 1)),
        ("epoch", "wrong_base", put(32, "<Q", 2)),
        ("epoch-0", "wrong_base", put(32, "<Q", 0)),
        ("digest", "wrong_base", xor(40, 1)),
        ("spare-bit", "bad_bitmap", xor(bits + 7, 0x80)),
        ("prob-bits", "bad_table", put(at + 8, "<B", 13)),
        ("segment-log2", "bad_table", put(at + 9, "<B", 21)),
        ("last-below-first", "bad_table", put(at + 11, "<B", 0)),
        ("symbol-count", "bad_table", put(at, "<Q", 2**40)),
        ("presence", "bad_table", xor(at + 12, 1)),
        ("frequency", "bad_table", xor(at + 15, 1)),
        ("state", "bad_stream", xor(len(frame) - 2 * word_count(coded[1]) - 1, 0x80)),
        ("last-word", "bad_stream", xor(len(frame) - 1, 1)),
    ]
    for name, verdict, change in faults:
        write("must_fail", name, change(frame), params, verdict=verdict,
              exponents=text(before.tobytes()))  # fmt: skip
    short = wire.assemble(params, wire.DELTA, [bitmap, rest, (0, b"abc")])
    write("must_fail", "stored-too-short", short, params, verdict="bad_sizes",
          exponents=text(before.tobytes()))  # fmt: skip
    key = replace(params, base_epoch=0, base_digest=0)
    key_frame, _ = wire.encode(inputs.words("weights", "bf16", 4000, 0), key, b"", "rans")
    write("must_fail", "key-with-a-base", put(32, "<Q", 1)(key_frame), key, verdict="wrong_base",
          exponents=text(np.zeros(4000, np.uint8).tobytes()))  # fmt: skip
    write("must_fail", "key-of-another-length", key_frame, replace(key, numel=3999),
          verdict="wrong_numel", exponents=text(bytes(3999)))  # fmt: skip


def word_count(section: bytes) -> int:
    count, _, log2, _, at = wire.read_table(section)
    segments = -(-count // (1 << log2))
    return int(struct.unpack_from("<I", section, at + 4 * (segments - 1))[0])


if __name__ == "__main__":
    must_decode()
    must_fail()
    changes_must_decode()
    changes_must_fail()
    same_must_decode()
    same_must_fail()
