"""Section 11 of docs/wire-format.md in NumPy: differences against old values, and their coder."""

from __future__ import annotations

import math
import struct
from itertools import pairwise
from typing import Any

import numpy as np
from reference_base import LANES, LOW, Array, normalise, reject

MARK, NEVER, FILL = 0x66, 127, 255
WEIGHTS = (0, 16, 28, 48, 82, 141, 244, 420, 724, 1248, 2152, 3710, 6396, 11026, 19008, 32768)
STEPS = (21, 36, 62, 108, 186, 320, 551, 951, 1639, 2825, 4871, 8397, 14477, 24957)
EIGHTHS = (17520007, 19105703, 20834917, 22720638, 24777031, 27019544, 29465022, 32131834)
FRACTIONS = (1099511627776, 1008256608221, 924575386327, 847839367509,
             777472127994, 712945084849, 653773525390, 599512966123)  # fmt: skip
T = np.array([[b >> 2 * j & 3 for j in range(4)] for b in range(256)])
MOVED = (T != 0).sum(1)


class Values:
    """The kind of value: its bits, its order and its level."""

    def __init__(self, mode: str, dtype: str) -> None:
        words = {"bf16": 16, "fp16": 16, "fp32": 32}
        self.exponents = mode == "exponent-delta"
        self.floats = dtype in words and not self.exponents
        self.bits = 8 if self.exponents else words.get(dtype) or int(dtype.removeprefix("opaque"))
        self.shift = {"bf16": 7, "fp16": 10, "fp32": 23}.get(dtype, 0)
        self.mask = {"bf16": 255, "fp16": 31, "fp32": 255}.get(dtype, 0)

    def levels(self, old: Array) -> Array:
        if self.exponents:
            return old.astype(np.int64)
        return (old.astype(np.uint64) >> np.uint64(self.shift)).astype(np.int64) & self.mask

    def _order(self, values: Array, back: bool) -> list[int]:
        sign, full = 1 << self.bits - 1, (1 << self.bits) - 1
        if not self.floats:
            return [int(v) for v in values]
        flipped = [(v & sign) == 0 if back else (v & sign) != 0 for v in map(int, values)]
        return [v ^ full if f else v ^ sign for v, f in zip(map(int, values), flipped, strict=True)]

    def differences(self, old: Array, new: Array) -> list[int]:
        half, full = 1 << self.bits - 1, (1 << self.bits) - 1
        found = []
        for a, b in zip(self._order(old, False), self._order(new, False), strict=True):
            d = (b - a) & full
            d -= (full + 1) if d >= half else 0
            found.append(2 * d if d >= 0 else -2 * d - 1)
        return found

    def apply(self, old: Array, u: list[int]) -> Array:
        full = (1 << self.bits) - 1
        moved = [(a + (v // 2 if v % 2 == 0 else -(v + 1) // 2)) & full
                 for a, v in zip(self._order(old, False), u, strict=True)]  # fmt: skip
        return np.array(self._order(np.array(moved, np.uint64), True), np.uint64).astype(old.dtype)


def value_symbol(u: int) -> tuple[int, int]:
    """(symbol, number of extra bits)."""
    if u < 16:
        return u, 0
    length = u.bit_length()
    return 16 + 4 * (length - 5) + (u >> length - 3 & 3), length - 3


def symbol_extra(symbol: int) -> int:
    return 0 if symbol < 16 else (symbol - 16) // 4 + 2


def eighths(count: int) -> int:
    if count < 2:
        return 0
    k = count.bit_length() - 1
    fraction = (count << 24) >> k
    return 8 * k + sum(fraction >= step for step in EIGHTHS)


def quad_weights(parameters: list[int], inflated: bool) -> list[int]:
    scores: list[int | None] = []
    for byte in range(256):
        used = [parameters[2 * j + (t == 3)] for j, t in enumerate(T[byte]) if t]
        if inflated and used:
            used.append(parameters[7 + len(used)])
        scores.append(None if NEVER in used else sum(used))
    least = min(s for s in scores if s is not None)
    return [0 if s is None else FRACTIONS[(s - least) % 8] >> (s - least) // 8 for s in scores]


def quad_frequencies(parameters: list[int], prob_bits: int) -> list[int]:
    weights = quad_weights(parameters, True)
    total = sum(weights)
    rare = [w << prob_bits + 1 < total or b == MARK for b, w in enumerate(weights)]
    mark = sum(w for w, r in zip(weights, rare, strict=True) if r)
    weights = [0 if r else w for w, r in zip(weights, rare, strict=True)]
    weights[MARK] = mark or 1
    return normalise(weights, prob_bits)


def quad_parameters(counts: Array) -> list[int]:
    def limited(x: int) -> int:
        return max(-120, min(120, x))

    parameters = []
    for j in range(4):
        n = [int(counts[T[:, j] == t].sum()) for t in range(4)]
        small = n[1] + n[2]
        parameters.append(limited(eighths(2 * n[0]) - eighths(small)) if small else NEVER)
        parameters.append(limited(eighths(n[0]) - eighths(n[3])) if n[3] else NEVER)
    weights = quad_weights([*parameters, 0, 0, 0, 0], False)
    expected = [sum(w for w, m in zip(weights, MOVED, strict=True) if m == q) for q in range(5)]
    moved = [int(counts[q == MOVED].sum()) for q in range(5)]
    for q in range(1, 5):
        z = eighths(moved[0]) + eighths(expected[q]) - eighths(moved[q]) - eighths(expected[0])
        parameters.append(limited(z) if moved[q] and expected[q] else NEVER)
    return parameters


def choose(levels: Array, wanted: int, share: int) -> tuple[int, int]:
    top = max(v for v in range(256) if share * int((levels >= v).sum()) >= len(levels))
    return min(wanted, top - int(levels.min()) + 1), top


def classes(levels: Array, contexts: int, top: int) -> Array:
    return np.clip(top - levels, 0, contexts - 1)


def quads_of(levels: Array, t: Array) -> tuple[Array, Array, Array]:
    """(bytes, smallest levels, order of the values in each quad)."""
    fill = -len(levels) % 4
    levels = np.concatenate([levels, np.full(fill, FILL)]).reshape(-1, 4)
    t = np.concatenate([t, np.zeros(fill, np.int64)]).reshape(-1, 4)
    order = np.argsort(levels, axis=1, kind="stable")
    shifts = np.array([0, 2, 4, 6])
    return (np.take_along_axis(t, order, 1) << shifts).sum(1), levels.min(1), order


class Lanes:
    """32 states. The encoder is fed backwards; the decoder reads words forwards."""

    def __init__(self, states: list[int] | None = None, words: list[int] | None = None) -> None:
        self.states = states or [LOW] * LANES
        self.words = words or []
        self.taken = 0

    def put(self, lane: int, f: int, cum: int, prob_bits: int) -> None:
        x = self.states[lane]
        if x >= f << 31 - prob_bits:
            self.words.append(x & 0xFFFF)
            x >>= 16
        self.states[lane] = (x // f << prob_bits) + x % f + cum

    def take(self, lane: int, prob_bits: int) -> int:
        return self.states[lane] & (1 << prob_bits) - 1

    def advance(self, lane: int, f: int, cum: int, prob_bits: int) -> None:
        x = self.states[lane]
        x = f * (x >> prob_bits) + (x & (1 << prob_bits) - 1) - cum
        if x < LOW:
            reject(self.taken >= len(self.words), "bad_stream")
            x = x << 16 | self.words[self.taken]
            self.taken += 1
        self.states[lane] = x

    def finish(self) -> None:
        home = all(x == LOW for x in self.states)
        reject(not home or self.taken != len(self.words), "bad_stream")


def raw_steps(bits: int) -> int:
    return -(-(bits - 3) // 15)


def raw_widths(extra: int, bits: int) -> list[int]:
    return [max(0, min(15, extra - 15 * i)) for i in range(raw_steps(bits))]


def cumulated(freqs: list[int]) -> list[int]:
    return [0, *np.cumsum(freqs).tolist()]


def encode_segment(quads: list[tuple[int, list[int]]], values: list[tuple[int, list[int]]],
                   bits: int, prob_bits: int) -> Lanes:  # fmt: skip
    """``quads``: (byte, frequencies of its context); ``values``: (u, the same)."""
    lanes = Lanes()
    for start in range((len(values) - 1) // LANES * LANES, -1, -LANES):
        step = values[start : start + LANES]
        for i in range(raw_steps(bits) - 1, -1, -1):
            for lane in range(len(step) - 1, -1, -1):
                u = step[lane][0]
                extra = value_symbol(u)[1]
                width = raw_widths(extra, bits)[i]
                if width:
                    number = (u & (1 << extra) - 1) >> 15 * i & (1 << width) - 1
                    lanes.put(lane, 1, number, width)
        for lane in range(len(step) - 1, -1, -1):
            symbol, freqs = value_symbol(step[lane][0])[0], step[lane][1]
            lanes.put(lane, freqs[symbol], cumulated(freqs)[symbol], prob_bits)
    marked = [b for b, freqs in quads if not freqs[b] or b == MARK]
    for i in range(len(marked) - 1, -1, -1):
        lanes.put(i % LANES, 1, marked[i], 8)
    for i in range(len(quads) - 1, -1, -1):
        byte, freqs = quads[i]
        symbol = byte if freqs[byte] and byte != MARK else MARK
        lanes.put(i % LANES, freqs[symbol], cumulated(freqs)[symbol], prob_bits)
    return lanes


def value_tables_of(symbols: Array, context: Array, contexts: int,
                    prob_bits: int) -> tuple[bytes, list[list[int]]]:  # fmt: skip
    """The tables as they are written, and their frequencies."""
    written, tables = b"", []
    for c in range(contexts):
        counts = np.bincount(symbols[context == c], minlength=256).tolist()
        total = sum(counts)
        codes = [1 + sum(n * WEIGHTS[15] >= g * total for g in STEPS) if n else 0 for n in counts]
        used = [s for s in range(256) if codes[s]]
        first, last = (used[0], used[-1]) if used else (1, 0)
        nibbles = codes[first : last + 1] + [0] * (-(last + 1 - first) % 2)
        written += bytes([first, last])
        written += bytes(a | b << 4 for a, b in zip(nibbles[::2], nibbles[1::2], strict=True))
        tables.append(normalise([WEIGHTS[k] for k in codes], prob_bits) if used else [0] * 256)
    return written, tables


def encode(values: Values, old: Array, new: Array, effort: str = "default", log2: int = 16,
           prob_bits: int = 11) -> bytes:  # fmt: skip
    u = values.differences(old, new)
    levels = values.levels(old)
    high = effort == "high"
    t = np.array([min(v, 3) for v in u])
    chosen = np.ones(len(u), bool) if high else t == 3
    out, models = struct.pack("<QBBB", len(u), prob_bits, log2, high), b""
    quads: list[tuple[int, list[int]]] = []
    if high:
        out += bytes(2)
    else:
        symbols, smallest, _ = quads_of(levels, t)
        moved = int((symbols != 0).sum())
        cq, top = choose(smallest, 1 if moved < 128 else 4 if moved < 1024 else 8, 64)
        context = classes(smallest, cq, top)
        out += bytes([cq, top])
        parameters = [quad_parameters(np.bincount(symbols[context == c], minlength=256))
                      for c in range(cq)]  # fmt: skip
        models = b"".join(struct.pack("<12b", *one) for one in parameters)
        tables = [quad_frequencies(one, prob_bits) for one in parameters]
        quads = [(int(b), tables[c]) for b, c in zip(symbols, context, strict=True)]
    coded: list[tuple[int, list[int]]] = []
    if chosen.any():
        count = int(chosen.sum())
        wanted = 1 if count < 256 else 12 if high and count >= 4096 else 4
        cv, top = choose(levels[chosen], wanted, 64 if high else 16)
        context = classes(levels[chosen], cv, top)
        taken = [v for v, c in zip(u, chosen, strict=True) if c]
        symbols = np.array([value_symbol(v)[0] for v in taken])
        written, tables = value_tables_of(symbols, context, cv, prob_bits)
        coded = [(v, tables[c]) for v, c in zip(taken, context, strict=True)]
        out += bytes([cv, top, 0]) + models + written
    else:
        out += bytes(3) + models
    out += bytes(-len(out) % 4)
    return out + encode_segments(quads, coded, chosen, (1 if high else 4) << log2, values.bits,
                                 prob_bits)  # fmt: skip


def encode_segments(quads: list[Any], coded: list[Any], chosen: Array, size: int, bits: int,
                    prob_bits: int) -> bytes:  # fmt: skip
    """Segments of ``size`` values; ``chosen``: those that the value coder takes."""
    ends, states, words, next_value = [], b"", b"", 0
    for start in range(0, len(chosen), size):
        escapes = int(chosen[start : start + size].sum())
        part = quads[start // 4 : (start + size) // 4]
        lanes = encode_segment(part, coded[next_value : next_value + escapes], bits, prob_bits)
        next_value += escapes
        words += struct.pack(f"<{len(lanes.words)}H", *lanes.words[::-1])
        ends.append(len(words) // 2)
        states += struct.pack("<32I", *lanes.states)
    return struct.pack(f"<{len(ends)}I", *ends) + states + words


def read_value_table(data: bytes, at: int, bits: int) -> tuple[list[int], int]:
    """(codes of the 256 symbols, end)."""
    codes = [0] * 256
    reject(len(data) < at + 2, "bad_table")
    first, last = data[at], data[at + 1]
    at += 2
    if (first, last) == (1, 0):
        return codes, at
    count = last + 1 - first
    end = at + (count + 1) // 2
    reject(last >= 4 * bits or count < 1 or len(data) < end, "bad_table")
    for i in range(count):
        codes[first + i] = data[at + i // 2] >> 4 * (i % 2) & 15
    reject(not codes[first] or not codes[last], "bad_table")
    reject(count % 2 and data[end - 1] >> 4, "bad_padding")
    return codes, end


def read_tables(data: bytes, expected: int, bits: int) -> tuple[Any, ...]:
    reject(len(data) < 16, "bad_table")
    count, prob_bits, log2, form, cq, qtop, cv, vtop, zero = struct.unpack_from("<Q8B", data)
    reject(form > 1 or not 8 <= prob_bits <= 12 or not 10 <= log2 <= 20, "bad_table")
    reject((cq or qtop) if form else not 1 <= cq <= 8, "bad_table")
    reject(cv > 12 or (cv == 0 and (form or vtop)), "bad_table")
    reject(zero, "bad_padding")
    at = 16 + 12 * cq
    reject(len(data) < at, "bad_table")
    quads = [quad_frequencies(list(struct.unpack_from("<12b", data, 16 + 12 * c)), prob_bits)
             for c in range(cq)]  # fmt: skip
    values = []
    for _ in range(cv):
        codes, at = read_value_table(data, at, bits)
        values.append(normalise([WEIGHTS[k] for k in codes], prob_bits) if any(codes) else None)
    end = at + -at % 4
    reject(len(data) < end, "bad_table")
    reject(any(data[at:end]), "bad_padding")
    reject(count != expected or count == 0, "bad_table")
    return prob_bits, log2, form, (quads, qtop), (values, vtop), end


def take_symbol(lanes: Lanes, lane: int, freqs: list[int], prob_bits: int) -> int:
    cums = cumulated(freqs)
    m = lanes.take(lane, prob_bits)
    symbol = int(np.searchsorted(cums, m, side="right")) - 1
    lanes.advance(lane, freqs[symbol], cums[symbol], prob_bits)
    return symbol


def take_raw(lanes: Lanes, lane: int, width: int) -> int:
    number = lanes.take(lane, width)
    lanes.advance(lane, 1, number, width)
    return number


def take_values(lanes: Lanes, tables: list[Any], bits: int, prob_bits: int) -> list[int]:
    found: list[int] = []
    for start in range(0, len(tables), LANES):
        step = [take_symbol(lanes, lane, freqs, prob_bits)
                for lane, freqs in enumerate(tables[start : start + LANES])]  # fmt: skip
        extra = [0] * len(step)
        for i in range(raw_steps(bits)):
            for lane, symbol in enumerate(step):
                width = raw_widths(symbol_extra(symbol), bits)[i]
                if width:
                    extra[lane] |= take_raw(lanes, lane, width) << 15 * i
        found += [s if s < 16 else (4 | s & 3) << symbol_extra(s) | e
                  for s, e in zip(step, extra, strict=True)]  # fmt: skip
    return found


def take_quads(lanes: Lanes, tables: list[list[int]], prob_bits: int) -> list[int]:
    found = [take_symbol(lanes, i % LANES, freqs, prob_bits) for i, freqs in enumerate(tables)]
    marks = [i for i, b in enumerate(found) if b == MARK]
    for k, i in enumerate(marks):
        found[i] = take_raw(lanes, k % LANES, 8)
    return found


def decode(values: Values, data: bytes, old: Array) -> Array:
    """The new values of the changed blocks, whose old ones are ``old``."""
    tables = read_tables(data, len(old), values.bits)
    prob_bits, log2, form, (quad_tables, qtop), (value_tables, vtop), at = tables
    items = len(old) if form else -(-len(old) // 4)
    segments = math.ceil(items / (1 << log2))
    reject(len(data) < at + 132 * segments, "bad_stream")
    ends = [0, *struct.unpack_from(f"<{segments}I", data, at)]
    reject(any(b < a for a, b in pairwise(ends)), "bad_stream")
    words_at = at + 132 * segments
    reject(len(data) - words_at != 2 * ends[-1], "bad_stream")
    words = np.frombuffer(data, "<u2", offset=words_at).tolist()
    levels = values.levels(old)
    size = (1 if form else 4) << log2
    u: list[int] = []
    for s in range(segments):
        states = list(struct.unpack_from("<32I", data, at + 4 * segments + 128 * s))
        reject(any(not LOW <= x < LOW << 16 for x in states), "bad_stream")
        lanes = Lanes(states, words[ends[s] : ends[s + 1]])
        part = levels[s * size : (s + 1) * size]
        t = np.full(len(part), 3)
        if not form:
            _, smallest, order = quads_of(part, np.zeros(len(part), np.int64))
            freqs = [quad_tables[c] for c in classes(smallest, len(quad_tables), qtop)]
            found = T[take_quads(lanes, freqs, prob_bits)]
            t = np.zeros(found.shape, np.int64)
            np.put_along_axis(t, order, found, 1)
            t = t.reshape(-1)
            reject(t[len(part) :].any(), "bad_stream")
            t = t[: len(part)]
        chosen = part[t == 3]
        reject(len(chosen) and not value_tables, "bad_stream")
        freqs = [value_tables[c] for c in classes(chosen, len(value_tables), vtop)]
        reject(any(f is None for f in freqs), "bad_stream")
        escapes = iter(take_values(lanes, freqs, values.bits, prob_bits))
        u += [next(escapes) if v == 3 else int(v) for v in t]
        lanes.finish()
    return values.apply(old, u)
