"""The native decoder, with the arguments of the NumPy one."""

from __future__ import annotations

import wire_reference as wire
from ciera import _native


def native_decode(
    frame: bytes, params: wire.Params, cache: bytes, held: bytes = b""
) -> tuple[str, bytes, bytes]:
    """The verdict, the words and the cache after the frame (bytes of exponents, or of words).

    ``held``: words of the reference, with ``params.words_held``.
    """
    return _native.decode_frame(
        frame,
        mode=params.mode,
        dtype=params.dtype,
        block_size=params.block_size,
        numel=params.numel,
        shard_id=params.shard_id,
        base_epoch=params.base_epoch,
        base_digest=params.base_digest,
        exponents=cache,
        words=held if params.words_held else None,
    )
