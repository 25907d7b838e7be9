"""Golden frames through the NumPy decoder and through the native one; encoders byte for byte."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import inputs
import numpy as np
import pytest
import wire_reference as wire
from ciera import _native
from hypothesis import given, settings
from hypothesis import strategies as st
from native_codec import native_decode

GOLDEN = Path(__file__).parents[1] / "data/golden"


def frames(folder: str) -> list[Path]:
    return sorted((GOLDEN / folder).glob("*.frame"))


def load(path: Path) -> tuple[bytes, wire.Params, dict[str, Any], np.ndarray]:
    index = json.loads(path.with_suffix(".json").read_text())
    params = wire.Params(**index["params"])
    if params.mode == "word-delta":
        cache = np.frombuffer(base64.b64decode(index["reference"]), wire.WORDS[params.dtype])
    else:
        cache = np.frombuffer(base64.b64decode(index.get("exponents", "")), np.uint8)
    return path.read_bytes(), params, index, cache


def native_encode(
    words: np.ndarray, params: wire.Params, hashes: bytes, coder: str
) -> tuple[bytes, bytes]:
    return _native.encode_frame(
        words.tobytes(),
        mode=params.mode,
        coder=coder,
        dtype=params.dtype,
        block_size=params.block_size,
        shard_id=params.shard_id,
        base_epoch=params.base_epoch,
        base_digest=params.base_digest,
        hashes=hashes,
    )


def test_there_are_golden_frames_of_both_kinds_and_every_verdict() -> None:
    assert len(frames("must_decode")) > 30
    seen = {load(path)[2]["verdict"] for path in frames("must_fail")}
    assert len(seen) == 18, "one of the verdicts of section 8 has no frame"


@pytest.mark.parametrize("path", frames("must_decode"), ids=lambda p: p.stem)
def test_frame_that_must_decode_does_in_both_decoders(path: Path) -> None:
    frame, params, index, exponents = load(path)
    expected = base64.b64decode(index["words"])
    held = base64.b64decode(index.get("held", ""))
    known = np.frombuffer(held, wire.WORDS[params.dtype]) if params.words_held else None
    words, after = wire.decode(frame, params, exponents, known)
    assert words.tobytes() == expected
    verdict, native_words, native_after = native_decode(frame, params, exponents.tobytes(), held)
    assert (verdict, native_words) == ("ok", expected)
    if params.mode != "exponent-only":
        assert native_after == after.tobytes()


@pytest.mark.parametrize("path", frames("must_fail"), ids=lambda p: p.stem)
def test_frame_that_must_fail_gets_its_verdict_from_both_decoders(path: Path) -> None:
    frame, params, index, exponents = load(path)
    with pytest.raises(wire.BadFrameError) as caught:
        wire.decode(frame, params, exponents)
    assert str(caught.value) == index["verdict"]
    held = base64.b64decode(index.get("held", ""))
    assert native_decode(frame, params, exponents.tobytes(), held)[0] == index["verdict"]


@pytest.mark.parametrize("dtype", wire.FLOATS)
@pytest.mark.parametrize("kind", inputs.KINDS)
@pytest.mark.parametrize("coder", ["rans", "raw"])
def test_native_encoder_writes_the_reference_bytes(dtype: str, kind: str, coder: str) -> None:
    # one block, several blocks with a short last one, more than one rANS segment
    for numel in (0, 5, 1000, 70001 if (kind, coder) == ("weights", "rans") else 300):
        params = wire.Params("exponent-block", dtype, 64, numel, "w")
        hashes = b""
        for step in range(3):
            words = inputs.words(kind, dtype, numel, step)
            frame, new = wire.encode(words, params, hashes, coder)
            assert native_encode(words, params, hashes, coder) == (frame, new), (numel, step)
            digest = int.from_bytes(frame[56:64], "little")
            params = wire.Params("exponent-block", dtype, 64, numel, "w", step + 1, digest)
            hashes = new


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(wire.FLOATS)),
    st.lists(st.integers(0, 2**32 - 1), max_size=200),
    st.sampled_from([8, 24, 512]),
)
def test_any_words_survive_both_codecs(dtype: str, values: list[int], block_size: int) -> None:
    width = wire.WORDS[dtype].itemsize * 8
    words = np.array([v >> (32 - width) for v in values], wire.WORDS[dtype])
    params = wire.Params("exponent-only", dtype, block_size, len(words), "h")
    frame, _ = native_encode(words, params, b"", "rans")
    assert wire.encode(words, params, b"", "rans")[0] == frame
    assert wire.decode(frame, params, np.empty(0, np.uint8))[0].tobytes() == words.tobytes()


def test_every_single_bit_flip_is_refused() -> None:
    words = inputs.words("weights", "bf16", 100, 0)
    params = wire.Params("exponent-only", "bf16", 64, 100, "w")
    frame, _ = native_encode(words, params, b"", "rans")
    for bit in range(8 * len(frame)):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        assert native_decode(bytes(flipped), params, b"")[0] != "ok", bit
    for size in range(len(frame)):
        assert native_decode(frame[:size], params, b"")[0] != "ok", size


@pytest.mark.parametrize("mode", ["exponent-block", "exponent-delta"])
@pytest.mark.parametrize("dtype", wire.FLOATS)
def test_unchanged_words_that_receivers_hold_are_a_same_frame(mode: str, dtype: str) -> None:
    # none; one; more than what is compared at once
    for numel in (0, 1, 300_000):
        words = inputs.words("weights", dtype, numel, 0)
        exponents = wire.split(words, dtype)[0].tobytes()
        params = wire.Params(mode, dtype, 64, numel, "w", 5, 77, words_held=True)

        def encoded(
            now: np.ndarray,
            held: bytes | None,
            params: wire.Params = params,
            exponents: bytes = exponents,
        ) -> bytes:
            return _native.encode_frame(
                now.tobytes(), mode=mode, coder="rans", dtype=dtype, block_size=64, shard_id="w",
                base_epoch=5, base_digest=77, words=held,
                hashes=wire.block_hashes(np.frombuffer(exponents, np.uint8), 64)
                if mode == "exponent-block" else b"",
                reference=exponents,
            )[0]  # fmt: skip

        frame = encoded(words, words.tobytes())
        assert frame == wire.encode_same(params)
        assert native_decode(frame, params, exponents, words.tobytes()) == (
            "ok", words.tobytes(), exponents
        )  # fmt: skip
        for at in {0, numel - 1} if numel else ():
            moved = words.copy()
            moved[at] ^= 1
            assert encoded(moved, words.tobytes())[5] != wire.SAME
        assert encoded(words, None)[5] != wire.SAME  # nobody holds them


def frames_of_the_document() -> list[bytes]:
    """The hex dumps of section 10, in order: raw, key, delta."""
    text = (GOLDEN.parents[2] / "docs/wire-format.md").read_text().split("## 10. Examples")[1]
    dumps = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.strip("\n").splitlines()
        if lines and all(line.startswith("    ") for line in lines):
            parts = [line.split("  x ") for line in (line.strip() for line in lines)]
            dumps.append(b"".join(bytes.fromhex(p[0]) * int((*p, "1")[1]) for p in parts))
    return dumps


def test_the_documents_examples_are_frames_of_the_encoder_and_both_decoders_read_them() -> None:
    raw, key, delta = frames_of_the_document()
    ones = np.full(192, 0x3F80, np.uint16)
    moved = ones.copy()
    moved[9] = 0x4000
    base = int.from_bytes(key[56:64], "little")
    hashes, exponents = b"", np.empty(0, np.uint8)
    for frame, words, epoch, digest in (
        (raw, ones[:3], 0, 0),
        (key, ones, 0, 0),
        (delta, moved, 1, base),
    ):
        params = wire.Params("exponent-block", "bf16", 64, len(words), "w", epoch, digest)
        encoded, hashes = native_encode(words, params, hashes if epoch else b"", "rans")
        assert encoded == frame
        verdict, decoded, _ = native_decode(frame, params, exponents.tobytes())
        assert (verdict, decoded) == ("ok", words.tobytes())
        known = exponents if epoch else np.empty(0, np.uint8)
        reference, exponents = wire.decode(frame, params, known)
        assert np.array_equal(reference, words)
