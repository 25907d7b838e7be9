"""exponent-delta and word-delta: native frames against the NumPy codec, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import inputs
import numpy as np
import pytest
import wire_reference as wire
from ciera import _native
from hypothesis import given, settings
from hypothesis import strategies as st
from native_codec import native_decode

MODES = ("exponent-delta", "word-delta")
EFFORTS = ("default", "high")


def native_frame(words: np.ndarray, params: wire.Params, reference: np.ndarray, coder: str,
                 effort: str, segment_log2: int = 16) -> bytes:  # fmt: skip
    frame, hashes = _native.encode_frame(
        words.tobytes(),
        mode=params.mode,
        coder=coder,
        dtype=params.dtype,
        block_size=params.block_size,
        shard_id=params.shard_id,
        base_epoch=params.base_epoch,
        base_digest=params.base_digest,
        hashes=b"",
        reference=reference.tobytes(),
        effort=effort,
        segment_log2=segment_log2,
    )
    assert hashes == b""
    return frame


def reference_of(words: np.ndarray, params: wire.Params) -> np.ndarray:
    return words if params.mode == "word-delta" else wire.split(words, params.dtype)[0]


def after(params: wire.Params, frame: bytes) -> wire.Params:
    digest = int.from_bytes(frame[56:64], "little")
    return replace(params, base_epoch=params.base_epoch + 1, base_digest=digest)


def exchange(steps: list[np.ndarray], params: wire.Params, coder: str, effort: str) -> list[int]:
    """Frame kinds; encoders write the same bytes and both decoders give back every step."""
    reference = np.empty(0, wire.WORDS[params.dtype])
    cache = np.empty(0, np.uint8)
    kinds = []
    raw_bytes = steps[0].nbytes + 80
    for words in steps:
        frame = native_frame(words, params, reference, coder, effort)
        assert frame == wire.encode_changes(words, params, reference, coder, effort)
        assert len(frame) <= raw_bytes
        decoded, new_cache = wire.decode(frame, params, cache)
        assert decoded.tobytes() == words.tobytes()
        native = native_decode(frame, params, cache.tobytes())
        assert native == ("ok", words.tobytes(), new_cache.tobytes())
        kinds.append(frame[5])
        params, reference, cache = after(params, frame), reference_of(words, params), new_cache
    return kinds


def noise(dtype: str, numel: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, numel * wire.WORDS[dtype].itemsize, np.uint8).view(
        wire.WORDS[dtype]
    )


def trained(dtype: str, numel: int, step: int) -> np.ndarray:
    """Small steps on values of many magnitudes, as weights take them, and a few large ones."""
    random = np.random.default_rng(7)
    start = np.exp(random.normal(0, 2, numel)) * random.choice([-1, 1], numel)
    moved = start + step * 2e-3 * random.normal(0, 1, numel)
    if dtype == "fp16":
        return moved.astype(np.float16).view(np.uint16)
    bits = moved.astype(np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16) if dtype == "bf16" else bits


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", wire.FLOATS)
def test_weights_in_training_travel_as_delta_frames(mode: str, dtype: str, effort: str) -> None:
    # 9001: a short last block and a quad to fill; more than 4096 values for all contexts
    params = wire.Params(mode, dtype, 64, 9001, "w")
    kinds = exchange([trained(dtype, 9001, step) for step in range(3)], params, "rans", effort)
    assert kinds == [wire.KEY, wire.DELTA, wire.DELTA]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", wire.FLOATS)
@pytest.mark.parametrize("kind", inputs.KINDS)
@pytest.mark.parametrize("coder", ["rans", "raw"])
def test_both_encoders_write_one_frame(mode: str, dtype: str, kind: str, coder: str) -> None:
    for numel in (0, 1, 5, 300):
        params = wire.Params(mode, dtype, 16, numel, "w")
        steps = [inputs.words(kind, dtype, numel, step) for step in range(3)]
        exchange(steps, params, coder, "default")


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("dtype", wire.OPAQUE)
def test_integers_travel_as_differences(dtype: str, effort: str) -> None:
    first = noise(dtype, 3001, 1)
    counted = first + np.arange(3001).astype(first.dtype) % first.dtype.type(3)
    far = counted.copy()
    far[::2] = noise(dtype, 1501, 2)
    params = wire.Params("word-delta", dtype, 512, 3001, 5)
    kinds = exchange([first, counted, far, far, first], params, "rans", effort)
    assert kinds[:2] == [wire.RAW, wire.DELTA]
    assert kinds[3] == wire.SAME


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", wire.FLOATS)
def test_random_bits_and_special_values_survive(mode: str, dtype: str) -> None:
    width = wire.WORDS[dtype].itemsize * 8
    special = noise(dtype, 2000, 3)
    special[::7] = 1 << (width - 1)  # -0.0
    special[1::7] = (1 << width) - 1  # a NaN
    special[2::7] = 0
    params = wire.Params(mode, dtype, 64, 2000, "s")
    steps = [noise(dtype, 2000, 4), special, special ^ special.dtype.type(1), noise(dtype, 2000, 5)]
    exchange(steps, params, "rans", "default")


def test_a_shard_that_did_not_change_costs_a_header() -> None:
    words = trained("bf16", 5000, 0)
    params = wire.Params("word-delta", "bf16", 512, 5000, "w")
    key = native_frame(words, params, words[:0], "rans", "default")
    params = after(params, key)
    frame = native_frame(words, params, words, "rans", "default")
    assert (frame[5], len(frame)) == (wire.SAME, 64)
    for change, verdict in (((32, 1), "wrong_base"), ((40, 1), "wrong_base"), ((8, 1), None)):
        flipped = bytearray(frame)
        flipped[change[0]] ^= change[1]
        got = native_decode(wire.with_checksum(bytes(flipped)), params, words.tobytes())[0]
        assert got == (verdict or "bad_sections")


@pytest.mark.parametrize("effort", EFFORTS)
def test_segments_of_any_size_give_frames_that_both_decoders_read(effort: str) -> None:
    old, new = trained("bf16", 30_000, 0), trained("bf16", 30_000, 1)
    params = after(wire.Params("word-delta", "bf16", 512, 30_000, "w"), bytes(64))
    params = replace(params, base_digest=9)
    sizes = []
    for log2 in (10, 11, 16):
        frame = native_frame(new, params, old, "rans", effort, log2)
        assert native_decode(frame, params, old.tobytes())[:2] == ("ok", new.tobytes())
        assert wire.decode(frame, params, old)[0].tobytes() == new.tobytes()
        sizes.append(len(frame))
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([("word-delta", d) for d in sorted(wire.DTYPES)]
                    + [("exponent-delta", d) for d in sorted(wire.FLOATS)]),
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 70)), max_size=150),
    st.sampled_from([8, 24, 512]),
    st.sampled_from(EFFORTS),
)  # fmt: skip
def test_any_step_survives(
    form: tuple[str, str], values: list[tuple[int, int]], block_size: int, effort: str
) -> None:
    mode, dtype = form
    word = wire.WORDS[dtype]
    full = (1 << 8 * word.itemsize) - 1
    old = np.array([v & full for v, _ in values], word)
    new = np.array([(v + (1 << s >> 1)) & full for v, s in values], word)
    params = wire.Params(mode, dtype, block_size, len(values), "h")
    exchange([old, new], params, "rans", effort)


def test_every_single_bit_flip_of_a_delta_frame_is_refused() -> None:
    old, new = trained("bf16", 800, 0), trained("bf16", 800, 1)
    params = replace(wire.Params("word-delta", "bf16", 64, 800, "w"), base_epoch=1, base_digest=9)
    frame = native_frame(new, params, old, "rans", "default")
    assert frame[5] == wire.DELTA
    for bit in range(8 * len(frame)):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        assert native_decode(bytes(flipped), params, old.tobytes())[0] != "ok", bit


@pytest.mark.parametrize("effort", EFFORTS)
def test_damage_behind_the_checksum_gets_one_verdict_from_both_decoders(effort: str) -> None:
    old, new = trained("bf16", 1500, 0), trained("bf16", 1500, 1)
    params = replace(wire.Params("word-delta", "bf16", 64, 1500, "w"), base_epoch=1, base_digest=9)
    frame = native_frame(new, params, old, "rans", effort)
    random = np.random.default_rng(1)
    seen: set[Any] = set()
    for byte in [*range(96, 260), *random.integers(260, len(frame), 60).tolist()]:
        damaged = bytearray(frame)
        damaged[byte] ^= int(random.integers(1, 256))
        bad = wire.with_checksum(bytes(damaged))
        verdict, words, _ = native_decode(bad, params, old.tobytes())
        try:
            expected = ("ok", wire.decode(bad, params, old)[0].tobytes())
        except wire.BadFrameError as error:
            expected = (str(error), b"")
        assert (verdict, words) == expected, byte
        seen.add(verdict)
    assert {"bad_table", "bad_stream"} <= seen
