"""Gathered buffers that the library owns, through the Python face."""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

import ciera
import numpy as np
import pytest
from test_allgather import MODES, WORDS, distributions, on_ranks

STATEFUL = ("exponent-block", "exponent-delta", "word-delta")


def step_of(rank: int, step: int, numel: int = 3000, dtype: str = "bf16") -> np.ndarray:
    words = distributions(dtype, numel, seed=rank)["weights"]
    return words + (np.arange(numel) % 61 < step).astype(words.dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_buffer_serves_as_out_of_every_mode(mode: str, dtype: str, in_place: bool) -> None:
    numels = [3000, 0, 1001]

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse=mode, check_buffers=True)
        buffer = comm.buffer("w", numels, dtype=dtype)
        assert (len(buffer), buffer.numels, buffer.shard_id) == (4001, tuple(numels), "w")
        view = np.asarray(buffer).view(WORDS[dtype])
        assert not view.any()
        for step in (0, 0, 1, 2, 2):
            shards = [step_of(r, step, numels[r], dtype) for r in range(3)]
            shard = shards[rank]
            if in_place:
                shard = view[buffer.slice_of(rank)]
                shard[:] = shards[rank]
            result = comm.allgather("w", shard, out=buffer, dtype=dtype, version=step)
            assert result is buffer
            assert np.array_equal(view, np.concatenate(shards))
        stats = comm.stats()
        if mode in STATEFUL and numels[rank] > 0:  # in place the version says it
            assert (stats["delta_frames"], stats["same_frames"]) == (2, 2)

    on_ranks(3, body)


def test_word_delta_holds_the_shard_once() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse="word-delta")
        buffer = comm.buffer("w", 3000, dtype="bf16")
        for step in range(3):
            comm.allgather("w", step_of(rank, step), out=buffer, dtype="bf16")
            memory = comm.memory()
            assert memory["buffers"] == 2 * 2 * 3000
            assert memory["word_cache"] == memory["own_reference"] == 0
            assert memory["total"] == sum(v for k, v in memory.items() if k != "total")
        comm.allgather("other", step_of(rank, 0), dtype="bf16")
        assert comm.memory()["word_cache"] == comm.memory()["own_reference"] == 2 * 3000

    on_ranks(2, body)


def test_a_known_shard_gives_its_state_to_its_buffer() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse="word-delta")
        for kind, name in ((np.int64, "int64"), (np.uint16, "uint16")):
            shards = [(np.arange(500 + r) * (r + 3)).astype(kind) for r in range(2)]
            comm.allgather(name, shards[rank])
            buffer = comm.buffer(name)
            assert buffer.numels == (500, 501)
            assert np.array_equal(np.asarray(buffer).view(kind), np.concatenate(shards))
            assert comm.buffer(name, dtype=kind).dtype == name
            shards[0][7] += 1
            assert comm.allgather(name, shards[rank], out=buffer) is buffer
            assert np.array_equal(np.asarray(buffer).view(kind), np.concatenate(shards))
            with pytest.raises(ciera.ArgumentError, match="the shard is opaque"):
                comm.buffer(name, dtype=np.uint8)
        assert comm.memory()["word_cache"] == 0

    on_ranks(2, body)


@pytest.mark.parametrize("mode", STATEFUL)
def test_an_unchanged_shard_costs_a_header_when_every_rank_has_a_buffer(mode: str) -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse=mode)
        buffer = comm.buffer("w", 3000, dtype="bf16")
        comm.allgather("w", step_of(rank, 0), out=buffer, dtype="bf16")
        before = comm.stats()["wire_bytes"]
        comm.allgather("w", step_of(rank, 0), out=buffer, dtype="bf16")
        assert comm.stats()["wire_bytes"] - before == 64 + 24 + 8
        elsewhere = comm.allgather("w", step_of(rank, 0), dtype="bf16")
        assert np.array_equal(elsewhere, np.concatenate([step_of(r, 0) for r in range(2)]))
        assert comm.stats()["same_frames"] == 2

    on_ranks(2, body)


def test_segments_and_handles_take_buffers() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse="word-delta")
        first, second = (comm.buffer(id_, 1500, dtype="bf16") for id_ in ("a", 2))
        for step in range(3):
            outs = [first, second]
            pending = comm.allgather_segments(
                [("a", 1500), (2, 1500)], step_of(rank, step), out=outs, dtype="bf16",
                per_segment=True, async_op=True,
            )  # fmt: skip
            assert pending.wait() is outs
            for half, buffer in enumerate(outs):
                part = slice(1500 * half, 1500 * half + 1500)
                want = np.concatenate([step_of(r, step)[part] for r in range(2)])
                assert np.array_equal(np.asarray(buffer), want)
        assert comm.stats("a")["delta_frames"] == 2

    on_ranks(2, body)


def test_memory_of_a_buffer_outlives_reset_close_and_the_communicator() -> None:
    comm = ciera.CompressedAllgather(ciera.loopback(1)[0], reuse="word-delta")
    shard = np.arange(1000, dtype=np.float32)
    buffer = comm.buffer("w", 1000, dtype=np.float32)
    comm.allgather("w", shard, out=buffer)
    view = np.asarray(buffer)
    comm.reset("w")
    assert not buffer.attached
    assert "let go" in repr(buffer)
    assert comm.memory()["buffers"] == 0
    with pytest.raises(ciera.ArgumentError, match=r"shard 'w', rank 0: .*let go.*comm\.buffer"):
        comm.allgather("w", shard, out=buffer)
    comm.allgather("w", shard, out=view)  # memory like any other
    again = comm.buffer("w")
    assert again.attached
    assert np.asarray(again).ctypes.data != view.ctypes.data
    comm.allgather("w", shard + 1, out=again)
    assert np.array_equal(view, shard)
    held = weakref.ref(comm)
    comm.close()
    assert not again.attached
    with pytest.raises(ciera.ClosedError):
        comm.buffer("w")
    view = np.asarray(again)
    del comm, again, buffer
    gc.collect()
    assert held() is None
    assert np.array_equal(view, shard + 1)


def test_buffers_that_do_not_fit_raise_with_shard_and_rank() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse="word-delta")
        label = f"shard 'w', rank {rank}: "
        for numel, dtype, text in (
            (None, None, "not known yet"),
            (3, None, "needs a dtype"),
            (-1, "bf16", "numel=-1"),
            ([1, 2, 3], "bf16", "give 2, not 3"),
            ([1, True], "bf16", "numel=True"),
            ("12", "bf16", "numel='12'"),
            (2**63 - 1, "bf16", "overflows"),
            (3, "bf17", "dtype='bf17'"),
            (3, object, "plain numbers"),
            (3, np.dtype(">f4"), "plain numbers"),
            (3, "S3", "plain numbers"),
        ):
            with pytest.raises(ciera.ArgumentError, match=text) as caught:
                comm.buffer("w", numel, dtype=dtype)
            assert str(caught.value).startswith(label), caught.value
        with pytest.raises(ciera.ArgumentError, match="shard_id"):
            comm.buffer(1.5)  # type: ignore[arg-type]
        buffer = comm.buffer("w", [30, 40], dtype="bf16")
        assert comm.buffer("w").numels == (30, 40)
        with pytest.raises(ciera.ArgumentError, match=r"its buffer has bf16 values of 30, 40.*res"):
            comm.buffer("w", 30, dtype="bf16")
        with pytest.raises(ciera.ArgumentError, match="rank 2 is not possible"):
            buffer.slice_of(2)
        assert comm.memory()["buffers"] == 140

        # What only the exchange of lengths shows, on every rank; then a buffer of the right ones.
        with pytest.raises(ciera.ArgumentError, match=r"rank 0 10 values \(buffer: 30\)"):
            comm.allgather("w", np.zeros(10, np.uint16), dtype="bf16")
        comm.reset("w")
        buffer = comm.buffer("w", 10, dtype="bf16")
        comm.allgather("w", np.ones(10, np.uint16), out=buffer, dtype="bf16")
        assert np.asarray(buffer).all()

    on_ranks(2, body)


def test_a_buffer_is_no_place_for_other_calls() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse="word-delta")
        buffer = comm.buffer("w", 100, dtype="bf16")
        shard = np.ones(100, np.uint16)
        comm.allgather("w", shard, out=buffer, dtype="bf16")
        for out in (buffer, np.asarray(buffer)):
            with pytest.raises(ciera.ArgumentError, match="out overlaps the buffer of shard 'w'"):
                comm.allgather("x", shard, out=out, dtype="bf16")
        with pytest.raises(ciera.ArgumentError, match="out is bfloat16 where the shard is uint16"):
            comm.allgather("w", shard, out=buffer)
        alone = ciera.CompressedAllgather(ciera.loopback(1)[0])
        with pytest.raises(ciera.ArgumentError, match="another communicator"):
            alone.allgather("w", np.ones(200, np.uint16), out=buffer, dtype="bf16")
        for _ in range(2):  # a refused call might have been one in place: first a key frame
            comm.allgather("w", shard, out=np.asarray(buffer), dtype="bf16")  # the very memory
        assert comm.stats("w")["same_frames"] == 1

    on_ranks(2, body)


@pytest.mark.parametrize("mode", STATEFUL)
def test_check_buffers_finds_who_wrote_to_a_peers_part(mode: str) -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse=mode, check_buffers=True)
        buffer = comm.buffer("w", 3000, dtype="bf16")
        comm.allgather("w", step_of(rank, 0), out=buffer, dtype="bf16")
        if rank == 1:
            np.asarray(buffer)[buffer.slice_of(0)][5] ^= 1
        kind = ciera.ArgumentError if rank == 1 else ciera.PeerFailedError
        with pytest.raises(kind, match="shard 'w', rank 1: the part of rank 0"):
            comm.allgather("w", step_of(rank, 1), out=buffer, dtype="bf16")
        comm.reset("w")
        buffer = comm.buffer("w", 3000, dtype="bf16")
        comm.allgather("w", step_of(rank, 1), out=buffer, dtype="bf16")
        assert np.array_equal(buffer, np.concatenate([step_of(r, 1) for r in range(2)]))

    on_ranks(2, body)


def test_torch_lies_over_a_buffer_in_its_own_dtype() -> None:
    torch = pytest.importorskip("torch")

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse="word-delta")
        buffer = comm.buffer("w", [100, 50], dtype=torch.bfloat16)
        full = torch.from_dlpack(buffer)
        assert (full.dtype, full.shape) == (torch.bfloat16, (150,))
        assert full.data_ptr() == np.asarray(buffer).ctypes.data
        shards = [torch.linspace(-1, 1, n, dtype=torch.bfloat16) * (r + 1)
                  for r, n in enumerate((100, 50))]  # fmt: skip
        for step in range(3):
            own = full[buffer.slice_of(rank)]
            own.copy_(shards[rank] * (1 + step))
            for out in (buffer, full):
                comm.allgather("w", own, out=out)
                assert torch.equal(full, torch.cat([one * (1 + step) for one in shards]))
        assert comm.memory()["word_cache"] == 0
        del buffer, comm
        gc.collect()
        assert torch.equal(full, torch.cat([one * 3 for one in shards]))
        del full, own
        gc.collect()

    on_ranks(2, body)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint64, np.complex64, np.bool_])
def test_dlpack_names_the_type_in_both_of_its_versions(dtype: Any) -> None:
    comm = ciera.CompressedAllgather(ciera.loopback(1)[0])
    buffer = comm.buffer("w", 24, dtype=dtype)
    plain = np.asarray(buffer)
    assert plain.dtype == dtype
    assert buffer.__dlpack_device__() == (1, 0)
    for view in (np.from_dlpack(buffer), np.from_dlpack(Old(buffer))):
        assert (view.dtype, view.size) == (plain.dtype, 24)
        assert view.ctypes.data == plain.ctypes.data
    alive = weakref.ref(buffer.native)
    unused = buffer.__dlpack__(), buffer.__dlpack__(max_version=(1, 0))
    del buffer, plain, comm
    gc.collect()
    assert alive() is not None
    del view, unused
    gc.collect()
    assert alive() is None


class Old:
    """As DLPack was before it had versions."""

    def __init__(self, buffer: ciera.GatheredBuffer) -> None:
        self.buffer = buffer

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.buffer.__dlpack__(stream=stream)


def test_dlpack_refuses_copies_and_other_devices() -> None:
    buffer = ciera.CompressedAllgather(ciera.loopback(1)[0]).buffer("w", 8, dtype="fp16")
    with pytest.raises(BufferError):
        buffer.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        buffer.__dlpack__(dl_device=(2, 0))


def test_an_empty_buffer_serves() -> None:
    comm = ciera.CompressedAllgather(ciera.loopback(1)[0], reuse="word-delta")
    buffer = comm.buffer("w", 0, dtype=np.float32)
    for _ in range(2):
        assert comm.allgather("w", np.zeros(0, np.float32), out=buffer) is buffer
    assert np.asarray(buffer).size == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_buffer_can_be_let_go_in_a_fork() -> None:
    comm = ciera.CompressedAllgather(ciera.loopback(1)[0], reuse="word-delta")
    shard = np.arange(1000, dtype=np.float32)
    buffer = comm.buffer("w", 1000, dtype="fp32")
    comm.allgather("w", shard, out=buffer)
    child = os.fork()
    if child == 0:
        read = np.array_equal(np.asarray(buffer), shard)
        del buffer
        gc.collect()
        os._exit(0 if read else 1)
    assert os.waitpid(child, 0)[1] == 0
    comm.allgather("w", shard, out=buffer)
    assert comm.stats("w")["same_frames"] == 1


def test_a_token_does_not_outlive_a_call_that_was_handed_over() -> None:
    filling = np.zeros(2000, np.float32)

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse="word-delta", plain_below_bytes=4000)
        shard = np.full(500, rank, np.float32)

        def framed(words: np.ndarray, token: str | None) -> np.ndarray:
            src = np.concatenate([words, filling])
            segments = [("a", 500), ("fill", 2000)]
            return comm.allgather_segments(segments, src, per_segment=True, versions=[token, None])[
                0
            ]

        for between in ("B", "A", None):
            framed(shard, "A")
            comm.allgather("a", shard + 10, version=between)
            expected = np.repeat(np.float32([20, 21]), 500)
            assert np.array_equal(framed(shard + 20, "A"), expected)

    on_ranks(2, body)


@pytest.mark.parametrize("wrong", ["out", "version", "segments"])
def test_a_refused_call_in_place_leaves_nothing_to_difference_against(wrong: str) -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse="word-delta")
        buffer = comm.buffer("w", 500, dtype="fp32")
        view = np.asarray(buffer)
        own = view[buffer.slice_of(rank)]
        shard = np.random.default_rng(rank).standard_normal(500).astype(np.float32)
        comm.allgather("w", shard, out=buffer)
        own[9] += 1  # written to, and then not gathered
        given: dict[str, Any] = {"out": buffer}
        if rank == 0:
            bad = {"out": np.empty(1000, np.int32)} if wrong == "out" else {"version": 1.5}
            given |= bad
        with pytest.raises(ciera.CieraError):
            if wrong == "segments" and rank == 0:
                comm.allgather_segments([("w", 500)], own, out=buffer, per_segment=True)
            else:
                comm.allgather("w", own, **given)
        shard[3] += 1
        comm.allgather("w", shard, out=buffer)  # from elsewhere again
        shards = [np.random.default_rng(r).standard_normal(500).astype(np.float32) for r in (0, 1)]
        for one in shards:
            one[3] += 1
        assert np.array_equal(view, np.concatenate(shards))

    on_ranks(2, body)


@pytest.mark.parametrize("token", ["\ud800", 1.5, b"x", 2**63])
def test_a_token_that_is_none_is_told_to_the_peers(token: Any) -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        for step in range(3):
            shard = np.full(3, 10 * step + rank, np.float32)
            if step == 1:
                wanted = ciera.ArgumentError if rank == 0 else ciera.PeerFailedError
                with pytest.raises(wanted, match=r"shard 'a', rank 0"):
                    comm.allgather("a", shard, version=token if rank == 0 else None)
            else:
                expected = np.repeat(np.float32([10 * step, 10 * step + 1]), 3)
                assert np.array_equal(comm.allgather("a", shard), expected)

    on_ranks(2, body)


@pytest.mark.parametrize("versions", [5, None, "a", {1: 2}])
def test_versions_are_a_list(versions: Any) -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        with pytest.raises(ciera.ArgumentError, match="versions are a list"):
            comm.allgather_segments([("a", 3)], np.zeros(3, np.float32), versions=versions)

    on_ranks(1, body)


@pytest.mark.parametrize("dtype", ["opaqueX", "opaque7", "M8[s]", "U4", [("x", "f4")], object])
def test_a_buffer_holds_numbers(dtype: Any) -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        with pytest.raises(ciera.ArgumentError, match=r"shard 'a', rank 0: dtype"):
            comm.buffer("a", 3, dtype=dtype)
        with pytest.raises(ciera.ArgumentError, match=r"shard 1.5, rank 0: a shard_id"):
            comm.buffer(1.5, 3, dtype="bf16")  # type: ignore[arg-type]
        with pytest.raises(ciera.ArgumentError, match=r"shard 'b': rank 1.0 is not possible"):
            comm.buffer("b", 3, dtype="bf16").slice_of(1.0)  # type: ignore[arg-type]

    on_ranks(1, body)


def test_after_a_deadline_only_close_remains() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        if rank == 0:
            with pytest.raises(ciera.DeadlineError):
                comm.allgather("a", np.zeros(3, np.float32))
            for call in (lambda: comm.buffer("a", 3, dtype="fp32"), lambda: comm.reset("a")):
                with pytest.raises(ciera.TransportError, match="close it and make a new one"):
                    call()
            comm.close()

    on_ranks(2, body, timeout=0.3)


def test_ranks_that_disagree_about_small_calls_see_it() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, plain_below_bytes=5000 * rank)
        with pytest.raises(ciera.RankMismatchError, match="plain_below_bytes=5000"):
            comm.allgather("a", np.zeros(3, np.float32))

    on_ranks(2, body)
