"""Frames in NumPy, written from docs/wire-format.md alone: the second opinion on the C++ codec.

Slow and plain on purpose. ``encode`` exists because the format allows one valid frame only, so that
bytes can be compared.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import changes_reference as changes
import numpy as np
from reference_base import LANES, LOW, Array, BadFrameError, normalise, reject

__all__ = ["BadFrameError"]
MASK = (1 << 64) - 1
GAMMA = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
RAW, KEY, DELTA, SAME = 0, 1, 2, 3
MODES = {"exponent-only": 1, "exponent-block": 2, "exponent-delta": 3, "word-delta": 4}
FLOATS = {"bf16": 1, "fp16": 2, "fp32": 3}
OPAQUE = {"opaque8": 16, "opaque16": 17, "opaque32": 18, "opaque64": 19}
DTYPES = FLOATS | OPAQUE
WORDS = {"bf16": np.dtype("<u2"), "fp16": np.dtype("<u2"), "fp32": np.dtype("<u4"),
         "opaque8": np.dtype("u1"), "opaque16": np.dtype("<u2"), "opaque32": np.dtype("<u4"),
         "opaque64": np.dtype("<u8")}  # fmt: skip
MANTISSA = {"bf16": 7, "fp16": 10, "fp32": 23}
EXPONENT = {"bf16": 8, "fp16": 5, "fp32": 8}


def sections_of(kind: int, mode: int) -> tuple[int, ...]:
    """The section kinds of a frame."""
    delta = {2: (2, 3, 4), 3: (2, 3, 5), 4: (2, 5)}
    return {RAW: (1,), KEY: (3, 4), SAME: ()}.get(kind) or (delta[mode] if kind == DELTA else ())


@dataclass(frozen=True)
class Params:
    """What both ends know before a frame is read."""

    mode: str
    dtype: str
    block_size: int
    numel: int
    shard_id: str | int
    base_epoch: int = 0
    base_digest: int = 0
    words_held: bool = False  # by every receiver, of the reference, in modes 2 and 3

    @property
    def blocks(self) -> int:
        return -(-self.numel // self.block_size)


def mix(z: Array) -> Array:
    z = z ^ (z >> np.uint64(30))
    z = z * np.uint64(0xBF58476D1CE4E5B9)
    z = z ^ (z >> np.uint64(27))
    z = z * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def mix_int(z: int) -> int:
    return int(mix(np.array([z & MASK], np.uint64))[0])


def words_of(data: bytes) -> Array:
    return np.frombuffer(data + bytes(-len(data) % 8), "<u8")


def keyed_sum(words: Array, gamma: int) -> int:
    index = np.arange(1, len(words) + 1, dtype=np.uint64)
    return int(mix(words + index * np.uint64(gamma)).sum(dtype=np.uint64))


def checksum(frame: bytes) -> int:
    blank = frame[:56] + bytes(8) + frame[64:]
    return mix_int(len(frame) + keyed_sum(words_of(blank), GAMMA[0])) or 1


def shard_key(shard_id: str | int) -> int:
    text = shard_id.encode() if isinstance(shard_id, str) else struct.pack("<q", shard_id)
    tag = (0 if isinstance(shard_id, str) else 1) + 2 * len(text)
    return mix_int(8 * tag + keyed_sum(words_of(text), GAMMA[0])) or 1


def block_hashes(exponents: Array, block_size: int) -> bytes:
    hashes = b""
    for start in range(0, len(exponents), block_size):
        block = exponents[start : start + block_size]
        words = words_of(block.tobytes())
        for gamma in GAMMA:
            hashes += struct.pack("<Q", mix_int(len(block) + keyed_sum(words, gamma)))
    return hashes


def split(words: Array, dtype: str) -> tuple[Array, Array]:
    mantissa, exponent = MANTISSA[dtype], EXPONENT[dtype]
    wide = words.astype(np.uint32)
    exponents = (wide >> mantissa & ((1 << exponent) - 1)).astype(np.uint8)
    rest = (wide >> (mantissa + exponent) << mantissa) | (wide & ((1 << mantissa) - 1))
    return exponents, rest


def merge(exponents: Array, rest: Array, dtype: str) -> Array:
    mantissa, exponent = MANTISSA[dtype], EXPONENT[dtype]
    wide = rest >> mantissa << (mantissa + exponent) | rest & ((1 << mantissa) - 1)
    return (wide | exponents.astype(np.uint32) << mantissa).astype(WORDS[dtype])


def pack(fields: Array, bits: int) -> bytes:
    padded = np.zeros(-(-len(fields) // 8) * 8, np.uint8)
    padded[: len(fields)] = fields
    planes = padded.reshape(-1, 8, 1) >> np.arange(bits, dtype=np.uint8) & 1
    return np.packbits(planes, axis=1, bitorder="little").transpose(0, 2, 1).tobytes()


def unpack(data: bytes, count: int, bits: int) -> Array:
    planes = np.frombuffer(data, np.uint8).reshape(-1, bits)
    fields = np.unpackbits(planes, axis=1, bitorder="little").reshape(-1, bits, 8)
    values = (fields << np.arange(bits, dtype=np.uint8).reshape(1, bits, 1)).sum(1, dtype=np.uint8)
    return np.asarray(values.reshape(-1)[:count])


def rest_bytes(rest: Array, dtype: str) -> bytes:
    if dtype == "fp16":
        return rest.astype(np.uint8).tobytes() + pack((rest >> 8).astype(np.uint8), 3)
    width = 3 if dtype == "fp32" else 1
    return rest.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width].tobytes()


def rest_size(numel: int, dtype: str) -> int:
    return {"bf16": numel, "fp16": numel + 3 * -(-numel // 8), "fp32": 3 * numel}[dtype]


def rest_values(data: bytes, numel: int, dtype: str) -> Array:
    raw = np.frombuffer(data, np.uint8)
    if dtype == "fp16":
        high = unpack(data[numel:], numel, 3).astype(np.uint32)
        return np.asarray(raw[:numel].astype(np.uint32) | high << 8)
    width = 3 if dtype == "fp32" else 1
    wide = np.zeros((numel, 4), np.uint8)
    wide[:, :width] = raw.reshape(numel, width)
    return np.asarray(wide.view("<u4").reshape(-1).astype(np.uint32))


def stored_size(count: int, dtype: str) -> int:
    return 5 * -(-count // 8) if dtype == "fp16" else count


def rans_encode(symbols: Array, prob_bits: int = 12, segment_log2: int = 16) -> bytes:
    freqs = normalise(np.bincount(symbols, minlength=256).tolist(), prob_bits)
    first = next(s for s in range(256) if freqs[s])
    last = max(s for s in range(256) if freqs[s])
    present = np.array([f > 0 for f in freqs[first : last + 1]])
    out = struct.pack("<QBBBB", len(symbols), prob_bits, segment_log2, first, last)
    out += np.packbits(present, bitorder="little").tobytes()
    out += b"".join(struct.pack("<H", f - 1) for f in freqs if f)
    out += bytes(-len(out) % 4)
    cums = np.concatenate([[0], np.cumsum(freqs)[:-1]])
    ends, states, words = [], b"", b""
    for start in range(0, len(symbols), 1 << segment_log2):
        part = symbols[start : start + (1 << segment_log2)].tolist()
        lanes, emitted = [LOW] * LANES, []
        for i in range(len(part) - 1, -1, -1):
            f, x = freqs[part[i]], lanes[i % LANES]
            if x >= f << (31 - prob_bits):
                emitted.append(x & 0xFFFF)
                x >>= 16
            lanes[i % LANES] = (x // f << prob_bits) + x % f + int(cums[part[i]])
        words += struct.pack(f"<{len(emitted)}H", *emitted[::-1])
        ends.append(len(words) // 2)
        states += struct.pack("<32I", *lanes)
    return out + struct.pack(f"<{len(ends)}I", *ends) + states + words


def read_table(data: bytes) -> tuple[int, int, int, list[int], int]:
    reject(len(data) < 12, "bad_table")
    count, prob_bits, log2, first, last = struct.unpack_from("<QBBBB", data)
    reject(not 8 <= prob_bits <= 12 or not 10 <= log2 <= 20 or last < first, "bad_table")
    width = last - first + 1
    at = 12 + -(-width // 8)
    reject(len(data) < at, "bad_table")
    bits = np.unpackbits(np.frombuffer(data[12:at], np.uint8), bitorder="little")
    reject(bits[width:].any() or not bits[0] or not bits[width - 1], "bad_table")
    freqs = [0] * 256
    for s in np.flatnonzero(bits):
        reject(len(data) < at + 2, "bad_table")
        freqs[first + int(s)] = struct.unpack_from("<H", data, at)[0] + 1
        at += 2
    end = at + -at % 4
    reject(sum(freqs) != 1 << prob_bits or len(data) < end, "bad_table")
    reject(any(data[at:end]), "bad_padding")
    return count, prob_bits, log2, freqs, end


def rans_decode(data: bytes, expected: int) -> Array:
    count, prob_bits, log2, freqs, at = read_table(data)
    reject(count != expected or count == 0, "bad_table")
    segments = -(-count // (1 << log2))
    reject(len(data) < at + 132 * segments, "bad_stream")
    ends = [0, *struct.unpack_from(f"<{segments}I", data, at)]
    reject(any(b < a for a, b in pairwise(ends)), "bad_stream")
    words_at = at + 132 * segments
    reject(len(data) - words_at != 2 * ends[-1], "bad_stream")
    words = np.frombuffer(data, "<u2", offset=words_at).astype(np.uint64)
    symbol = np.repeat(np.arange(256), freqs)
    freq = np.array(freqs, np.uint64)[symbol]
    offset = np.concatenate([np.arange(f) for f in freqs]).astype(np.uint64)
    out = np.empty(count, np.uint8)
    for s in range(segments):
        lanes = np.frombuffer(data, "<u4", LANES, at + 4 * segments + 128 * s).astype(np.uint64)
        reject((lanes < LOW).any() or (lanes >= LOW << 16).any(), "bad_stream")
        start, end = s << log2, min(count, (s + 1) << log2)
        decode_segment(lanes, words[ends[s] : ends[s + 1]], out[start:end],
                       (symbol, freq, offset, prob_bits))  # fmt: skip
    return out


def decode_segment(lanes: Array, words: Array, out: Array, table: tuple[Any, ...]) -> None:
    symbol, freq, offset, prob_bits = table
    taken = 0
    for start in range(0, len(out), LANES):
        active = min(LANES, len(out) - start)
        x = lanes[:active]
        slot = (x & np.uint64((1 << prob_bits) - 1)).astype(np.int64)
        out[start : start + active] = symbol[slot]
        x = freq[slot] * (x >> np.uint64(prob_bits)) + offset[slot]
        hungry = np.flatnonzero(x < LOW)
        reject(taken + len(hungry) > len(words), "bad_stream")
        x[hungry] = x[hungry] << np.uint64(16) | words[taken : taken + len(hungry)]
        taken += len(hungry)
        lanes[:active] = x
    reject(taken != len(words) or (lanes != LOW).any(), "bad_stream")


def assemble(params: Params, kind: int, sections: list[tuple[int, bytes]]) -> bytes:
    """A frame of these (coder, content) sections."""
    entries = b"".join(
        struct.pack("<Q", number | coder << 8 | len(data) << 16)
        for number, (coder, data) in zip(
            sections_of(kind, MODES[params.mode]), sections, strict=True
        )
    )
    body = bytearray(64) + entries
    if not sections:
        body += bytes(-len(body) % 16)
    for _, data in sections:
        body += bytes(-len(body) % 16) + data
    base = (params.base_epoch, params.base_digest) if kind >= DELTA else (0, 0)
    struct.pack_into(
        "<4sBBBBBBHIQQQQQ", body, 0, b"CIRA", 1, kind, MODES[params.mode], DTYPES[params.dtype],
        len(sections), 0, 0, params.block_size, params.numel, len(body), *base,
        shard_key(params.shard_id),
    )  # fmt: skip
    struct.pack_into("<Q", body, 56, checksum(bytes(body)))
    return bytes(body)


def exponents_section(symbols: Array, dtype: str, coder: str) -> tuple[int, bytes]:
    """(coder, content)."""
    stored = pack(symbols, 5) if dtype == "fp16" else symbols.tobytes()
    coded = rans_encode(symbols) if coder == "rans" and len(symbols) else None
    return (1, coded) if coded and len(coded) < len(stored) else (0, stored)


def encode(words: Array, params: Params, hashes: bytes, coder: str) -> tuple[bytes, bytes]:
    """The one valid frame and the new hashes; ``hashes`` are those of the reference."""
    exponents, rest = split(words, params.dtype)
    new = block_hashes(exponents, params.block_size)
    delta = params.mode == "exponent-block" and params.base_epoch > 0
    symbols, sections = exponents, []
    if delta:
        pairs = [new[i : i + 16] != hashes[i : i + 16] for i in range(0, len(new), 16)]
        changed = np.array(pairs, bool)
        sections.append((0, np.packbits(changed, bitorder="little").tobytes()))
        symbols = exponents[np.repeat(changed, params.block_size)[: params.numel]]
    sections.append((0, rest_bytes(rest, params.dtype)))
    sections.append(exponents_section(symbols, params.dtype, coder))
    frame = assemble(params, DELTA if delta else KEY, sections)
    raw = assemble(params, RAW, [(0, words.tobytes())])
    stateful = params.mode == "exponent-block"
    return (raw if len(frame) >= len(raw) else frame), (new if stateful else b"")


def read_header(frame: bytes, params: Params) -> tuple[int, list[tuple[int, bytes]]]:
    """Checks in the order of section 8 up to wrong_base; returns kind and sections."""
    reject(len(frame) < 64, "truncated")
    (magic, version, kind, mode, dtype, count, must_reject, _, block_size, numel, size, epoch,
     digest, key, check) = struct.unpack_from("<4sBBBBBBHIQQQQQQ", frame)  # fmt: skip
    reject(magic != b"CIRA", "bad_magic")
    reject(version != 1, "bad_version")
    reject(must_reject, "bad_flags")
    same = (2, 3, 4) if params.words_held else (4,)
    reject(kind > SAME or (kind == SAME and mode not in same), "bad_kind")
    reject(mode not in MODES.values() or (kind == DELTA and mode == 1), "bad_mode")
    reject(mode != MODES[params.mode], "bad_mode")
    reject(dtype not in (DTYPES if mode == 4 else FLOATS).values(), "bad_dtype")
    reject(dtype != DTYPES[params.dtype] or (kind == KEY and dtype > 3), "bad_dtype")
    reject(block_size % 8 or not 8 <= block_size <= 65536, "bad_block_size")
    reject(block_size != params.block_size, "bad_block_size")
    expected = sections_of(kind, mode)
    reject(count != len(expected), "bad_sections")
    start = -(-(64 + 8 * count) // 16) * 16
    reject(len(frame) < start, "truncated")
    sections, end, gaps = [], 64 + 8 * count, []
    for i, number in enumerate(expected):
        (entry,) = struct.unpack_from("<Q", frame, 64 + 8 * i)
        coder = entry >> 8 & 0xFF
        reject(entry & 0xFF != number or coder > (1 if number >= 4 else 0), "bad_sections")
        at = -(-end // 16) * 16
        gaps.append((end, at))
        sections.append((coder, at, entry >> 16))
        end = at + (entry >> 16)
    end = max(end, start)
    reject(size != end, "bad_sizes")
    reject(len(frame) < size, "truncated")
    reject(len(frame) > size, "bad_sizes")
    reject(any(any(frame[a:b]) for a, b in gaps), "bad_padding")
    width = WORDS[params.dtype].itemsize
    fixed = {1: numel * width, 2: (numel + 8 * block_size - 1) // (8 * block_size),
             3: rest_size(numel, params.dtype) if dtype <= 3 else 0}  # fmt: skip
    for number, (_, _, length) in zip(expected, sections, strict=True):
        reject(length != fixed.get(number, length), "bad_sizes")
    reject(check != checksum(frame), "bad_checksum")
    reject(key != shard_key(params.shard_id), "wrong_shard")
    reject(numel != params.numel, "wrong_numel")
    base = (params.base_epoch, params.base_digest) if kind >= DELTA else (0, 0)
    reject((epoch, digest) != base or (kind >= DELTA and epoch == 0), "wrong_base")
    return kind, [(coder, frame[at : at + length]) for coder, at, length in sections]


def encode_same(params: Params) -> bytes:
    """The frame of a shard whose words are those of the reference."""
    return assemble(params, SAME, [])


def decode(
    frame: bytes, params: Params, cache: Array, held: Array | None = None
) -> tuple[Array, Array]:
    """(words, new cache); raises BadFrameError. ``cache``: exponents or words of the reference.

    ``held``: the words of the reference, with ``params.words_held``.
    """
    kind, sections = read_header(frame, params)
    word_cache = params.mode == "word-delta"
    if kind == SAME:
        return (cache if held is None else held), cache
    if kind == DELTA and params.mode in ("exponent-delta", "word-delta"):
        return decode_changes(params, sections, cache)
    if kind == RAW:
        words = np.frombuffer(sections[0][1], WORDS[params.dtype])
        return words, words if word_cache else split(words, params.dtype)[0]
    places = np.ones(params.numel, bool)
    if kind == DELTA:
        places = changed_places(params, sections[0][1])
    coder, data = sections[-1]
    count = int(places.sum())
    if coder == 1:
        symbols = rans_decode(data, count)
    else:
        symbols = stored_exponents(data, count, params.dtype)
    merged = cache.copy() if kind == DELTA else np.empty(params.numel, np.uint8)
    merged[places] = symbols
    rest = rest_values(sections[-2][1], params.numel, params.dtype)
    words = merge(merged, rest, params.dtype)
    return words, words if word_cache else merged


def changed_places(params: Params, bitmap: bytes) -> Array:
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    reject(bits[params.blocks :].any(), "bad_bitmap")
    blocks = np.repeat(bits[: params.blocks], params.block_size)
    return np.asarray(blocks[: params.numel].astype(bool))


def stored_exponents(data: bytes, count: int, dtype: str) -> Array:
    reject(len(data) != stored_size(count, dtype), "bad_sizes")
    return unpack(data, count, 5) if dtype == "fp16" else np.frombuffer(data, np.uint8)


def decode_changes(params: Params, sections: list[Any], cache: Array) -> tuple[Array, Array]:
    """Delta frames of exponent-delta and word-delta."""
    places = changed_places(params, sections[0][1])
    coder, data = sections[-1]
    values = cache.copy()
    if coder == 1:
        kind = changes.Values(params.mode, params.dtype)
        values[places] = changes.decode(kind, data, cache[places])
    elif params.mode == "word-delta":
        reject(len(data) != int(places.sum()) * cache.dtype.itemsize, "bad_sizes")
        values[places] = np.frombuffer(data, cache.dtype)
    else:
        values[places] = stored_exponents(data, int(places.sum()), params.dtype)
    if params.mode == "word-delta":
        return values, values
    rest = rest_values(sections[1][1], params.numel, params.dtype)
    return merge(values, rest, params.dtype), values


def encode_changes(words: Array, params: Params, reference: Array, coder: str,
                   effort: str = "default") -> bytes:  # fmt: skip
    """The one valid frame of exponent-delta and word-delta; without a base, its key frame."""
    raw = assemble(params, RAW, [(0, words.tobytes())])
    key, quick = raw, 0
    if params.dtype in FLOATS:
        exponents, rest = split(words, params.dtype)
        stored = rest_bytes(rest, params.dtype)
        section = exponents_section(exponents, params.dtype, coder)
        coded = assemble(params, KEY, [(0, stored), section])
        key = coded if len(coded) < len(raw) else raw
        quick = len(assemble(params, KEY, [(0, stored), (0, b"")]))
    if not params.base_epoch:
        return key
    word_delta = params.mode == "word-delta"
    now = words if word_delta else exponents
    padded = np.zeros(params.blocks * params.block_size, bool)
    padded[: params.numel] = now != reference
    changed = padded.reshape(params.blocks, params.block_size).any(1)
    if word_delta and not changed.any():
        return assemble(params, SAME, [])
    bitmap = np.packbits(changed, bitorder="little").tobytes()
    places = changed_places(params, bitmap)
    new = now[places]
    kind = changes.Values(params.mode, params.dtype)
    best = (0, new.tobytes() if word_delta else exponents_section(new, params.dtype, "raw")[1])
    if coder == "rans" and len(new):
        coded_changes = changes.encode(kind, reference[places], new, effort)
        if len(coded_changes) < len(best[1]):
            best = (1, coded_changes)
    sections = [(0, bitmap), best] if word_delta else [(0, bitmap), (0, stored), best]
    delta = assemble(params, DELTA, sections)
    quick += 0 if word_delta else params.numel // 16
    fits = len(delta) < len(raw) and (len(delta) <= quick or len(delta) < len(key))
    return delta if fits else key


def with_checksum(frame: bytes) -> bytes:
    """The frame with its checksum made right again, for faults that lie behind it."""
    return frame[:56] + struct.pack("<Q", checksum(frame)) + frame[64:]
