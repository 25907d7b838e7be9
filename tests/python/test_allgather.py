"""The all-gather through its Python face, over loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ciera
import numpy as np
import pytest

MODES = ("off", "exponent-only", "exponent-block", "exponent-delta", "word-delta")
WORDS = {"bf16": np.uint16, "fp16": np.uint16, "fp32": np.uint32}


def on_ranks(world_size: int, body: Callable[[int, Any], Any], timeout: float = 30.0) -> list[Any]:
    """Runs ``body(rank, transport)`` on one thread a rank; re-raises the first failure."""
    transports = ciera.loopback(world_size, timeout=timeout)
    results: list[Any] = [None] * world_size
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank, transports[rank])
        except BaseException as error:
            failures.append(error)
            transports[rank].abort(repr(error))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def distributions(dtype: str, numel: int, seed: int) -> dict[str, np.ndarray]:
    """Bit patterns that hit each path: weights, specials, constant, random."""
    rng = np.random.default_rng(seed)
    words = WORDS[dtype]
    normal = rng.normal(0, 0.02, numel).astype(np.float32)
    bits32 = normal.view(np.uint32)
    weights = {
        "bf16": (bits32 >> 16).astype(np.uint16),
        "fp16": normal.astype(np.float16).view(np.uint16),
        "fp32": bits32,
    }[dtype]
    top = {"bf16": 0x7F80, "fp16": 0x7C00, "fp32": 0x7F800000}[dtype]
    sign = 1 << (8 * np.dtype(words).itemsize - 1)
    special = np.array([0, sign, 1, sign | 1, top, sign | top, top | 1, top | 5, sign | top | 9])
    return {
        "weights": weights,
        "specials": special[rng.integers(0, len(special), numel)].astype(words),
        "constant": np.full(numel, 0x3F80, words),
        "random": rng.integers(0, np.iinfo(words).max, numel, dtype=words, endpoint=True),
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", WORDS)
def test_every_distribution_and_length_round_trips(mode: str, dtype: str) -> None:
    world_size = 3
    # 0 and 1; below, at and above a block; not a multiple of 8; several chunks and segments
    for numel in (0, 1, 63, 64, 65, 1003, 140001):
        shards = [distributions(dtype, numel + rank, seed=rank) for rank in range(world_size)]

        def body(rank: int, transport: Any, shards: Any = shards) -> None:
            with ciera.CompressedAllgather(transport, reuse=mode, block_size=64) as comm:
                for name in shards[0]:
                    for step in range(3):
                        moved = [
                            one[name] ^ (np.arange(len(one[name])) % 97 < step).astype(WORDS[dtype])
                            for one in shards
                        ]
                        out = comm.allgather("w", moved[rank], dtype=dtype)
                        assert np.array_equal(out, np.concatenate(moved)), (name, step)

        on_ranks(world_size, body)


@pytest.mark.parametrize("world_size", range(1, 9))
@pytest.mark.parametrize("block_size", [8, 512, 65536])
def test_world_and_block_sizes_round_trip_in_place(world_size: int, block_size: int) -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, block_size=block_size)
        for step in range(3):
            shards = [
                distributions("bf16", 2000, seed=r)["weights"] + np.uint16(step)
                for r in range(world_size)
            ]
            out = np.zeros(2000 * world_size, np.uint16)
            own = out[2000 * rank : 2000 * (rank + 1)]
            own[:] = shards[rank]
            assert comm.allgather(7, own, out=out, dtype="bf16") is out
            assert np.array_equal(out, np.concatenate(shards))

    on_ranks(world_size, body)


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("effort", ["default", "high"])
def test_integers_and_doubles_travel_as_word_differences(world_size: int, effort: str) -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse="word-delta", effort=effort)
        for kind in (np.int8, np.uint16, np.int32, np.float64, np.complex128):
            for step in range(3):
                shards = [(np.arange(20_000 + r) * (r + 1) + step).astype(kind)
                          for r in range(world_size)]  # fmt: skip
                out = comm.allgather(np.dtype(kind).name, shards[rank])
                assert np.array_equal(out, np.concatenate(shards))
        stats = comm.stats()
        assert stats["bare_segments"] == 3  # what has 128 bits
        assert (stats["raw_frames"], stats["delta_frames"]) == (4, 8)

    on_ranks(world_size, body)


def test_a_shard_that_did_not_change_is_a_same_frame() -> None:
    words = distributions("bf16", 5000, seed=1)["weights"]

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse="word-delta")
        for _ in range(3):
            out = comm.allgather("w", words, dtype="bf16")
            assert np.array_equal(out, np.concatenate([words, words]))
        stats = comm.stats("w")
        assert (stats["key_frames"], stats["delta_frames"], stats["same_frames"]) == (1, 0, 2)
        before = stats["wire_bytes"]
        comm.allgather("w", words, dtype="bf16")
        assert comm.stats("w")["wire_bytes"] - before == 64 + 24 + 8  # header and rows
        comm.allgather("w", words ^ np.uint16(rank == 0), dtype="bf16")  # one rank's own affair
        assert comm.stats("w")["delta_frames"] == (1 if rank == 0 else 0)
        assert comm.stats("w")["same_frames"] == (3 if rank == 0 else 4)

    on_ranks(2, body)


def test_an_equal_version_skips_the_comparison_until_the_state_is_gone() -> None:
    first = distributions("bf16", 3000, seed=1)["weights"]

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse="word-delta")

        def gather(shard: Any, version: Any) -> Any:
            return comm.allgather("w", shard, dtype="bf16", version=version)

        gather(first, "a")
        stale = first + np.uint16(1)
        # The caller's word is taken: what peers get is what they have.
        peer = slice(3000 * (1 - rank), 3000 * (2 - rank))
        assert np.array_equal(gather(stale, "a")[peer], first)
        assert comm.stats()["same_frames"] == 1
        assert np.array_equal(gather(stale, "b")[peer], stale)
        assert np.array_equal(gather(stale, None)[peer], stale)
        assert np.array_equal(gather(first, "b")[peer], first)  # the last call had no version
        comm.reset("w")
        assert np.array_equal(gather(stale, "b")[peer], stale)
        assert comm.stats()["same_frames"] == 2

    on_ranks(2, body)


def test_check_versions_refuses_a_shard_that_changed_under_its_version() -> None:
    words = distributions("bf16", 3000, seed=1)["weights"]

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse="word-delta", check_versions=True)
        for _ in range(2):
            comm.allgather("w", words, dtype="bf16", version=7)
        expected = ciera.ArgumentError if rank == 0 else ciera.PeerFailedError
        with pytest.raises(expected, match="version"):
            comm.allgather("w", words + np.uint16(rank == 0), dtype="bf16", version=7)
        out = comm.allgather("w", words, dtype="bf16", version=7)  # nothing had changed
        assert np.array_equal(out, np.concatenate([words, words]))
        assert comm.stats()["same_frames"] == 2

    on_ranks(2, body)


def test_a_version_that_is_none_is_told_to_every_rank() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse="word-delta")
        for bad in (1.5, True, 2**63):
            error = ciera.ArgumentError if rank == 0 else ciera.PeerFailedError
            with pytest.raises(error, match="version"):
                comm.allgather("w", np.zeros(8, np.float32), version=bad if rank == 0 else 1)
        with pytest.raises(ciera.ArgumentError, match="versions"):
            comm.allgather_segments([("a", 4), ("b", 4)], np.zeros(8, np.float32), versions=[1])
        comm.allgather_segments([("a", 4), ("b", 4)], np.zeros(8, np.float32), versions=[1, None])

    on_ranks(2, body)


def test_delta_modes_count_their_memory_and_keep_to_the_budget() -> None:
    lengths = [4000, 3000]

    def body(rank: int, transport: Any) -> None:
        own, peer = lengths[rank], lengths[1 - rank]
        shard = np.ones(own, np.float32)
        for mode, width in (("word-delta", 4), ("exponent-delta", 1)):
            need = width * (own + peer)  # the same on both ranks
            for budget, stateful in ((need, True), (need - 1, False)):
                with ciera.CompressedAllgather(
                    transport, reuse=mode, cache_budget_bytes=budget
                ) as comm:
                    for step in range(2):
                        comm.allgather("w", shard + np.float32(step * 1e-6))
                    memory, stats = comm.memory(), comm.stats()
                cache = "word_cache" if mode == "word-delta" else "exp_cache"
                assert memory[cache] == (width * peer if stateful else 0)
                assert memory["own_reference"] == (width * own if stateful else 0)
                assert stats["delta_frames"] == (1 if stateful else 0)
                assert stats["stateless_by_budget"] == (0 if stateful else 2)

    on_ranks(2, body)


def test_other_dtypes_travel_bare() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        for kind in (np.int8, np.float64, np.int32, np.complex128, np.bool_):
            shard = np.arange(5 + rank).astype(kind)
            out = comm.allgather(np.dtype(kind).name, shard)
            assert out.dtype == kind
            assert np.array_equal(out, np.concatenate([np.arange(5), np.arange(6)]).astype(kind))
        assert comm.stats()["bare_segments"] == 5

    on_ranks(2, body)


def test_torch_tensors_come_back_as_torch_tensors() -> None:
    torch = pytest.importorskip("torch")

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        for kind in (torch.bfloat16, torch.float16, torch.float32, torch.int64):
            shards = [torch.arange(100 + r).to(kind) for r in range(2)]
            out = comm.allgather(str(kind), shards[rank])
            assert out.dtype == kind
            assert torch.equal(out, torch.cat(shards))
            empty = comm.allgather(f"empty {kind}", shards[rank][:0])
            assert empty.dtype == kind
            assert empty.numel() == 0
        with pytest.raises(ciera.ArgumentError, match=r"contiguous 1-D.*"):
            comm.allgather("strided", torch.arange(10.0)[::2])

    on_ranks(2, body)


def test_segments_give_a_flat_buffer_or_one_array_each() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        src = [np.arange(300, dtype=np.float32) + 1000 * r for r in range(2)]
        segments = [("a", 100), ("empty", 0), ("b", 200)]
        flat = comm.allgather_segments(segments, src[rank])
        assert np.array_equal(flat, np.concatenate(src))
        a, empty, b = comm.allgather_segments(segments, src[rank], per_segment=True)
        assert np.array_equal(a, np.concatenate([src[0][:100], src[1][:100]]))
        assert empty.size == 0
        assert np.array_equal(b, np.concatenate([src[0][100:], src[1][100:]]))

    on_ranks(2, body)


def test_async_handles_complete_in_order_even_when_dropped() -> None:
    def body(rank: int, transport: Any) -> None:
        with ciera.CompressedAllgather(transport) as comm:
            comm.allgather_async("dropped", np.ones(50000, np.float32))
            handles = [
                comm.allgather_async("w", np.full(1000, step, np.float32)) for step in range(4)
            ]
            for step, handle in enumerate(handles):
                assert np.all(handle.wait(10) == step)
                assert handle.done()

    on_ranks(2, body)


BAD_SHARDS = {
    "matrix": np.zeros((2, 2), np.float32),
    "strided": np.zeros(20, np.float32)[::2],
    "object": np.array([None]),
    "list": [1.0, 2.0],
    "big-endian": np.zeros(4, ">f4"),
}


@pytest.mark.parametrize("what", BAD_SHARDS)
def test_a_bad_shard_on_one_rank_raises_on_every_rank_and_changes_nothing(what: str) -> None:
    good = np.linspace(0, 1, 2000, dtype=np.float32)

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        comm.allgather("w", good)
        error = ciera.ArgumentError if rank == 1 else ciera.PeerFailedError
        with pytest.raises(error, match=r"shard 'w', rank"):
            comm.allgather("w", BAD_SHARDS[what] if rank == 1 else good)
        comm.allgather("w", good)
        assert comm.stats("w")["delta_frames"] == 1

    on_ranks(2, body)


def test_misuse_raises_with_the_remedy() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        shard = np.zeros(64, np.float32)
        comm.allgather("w", shard)
        for call, error, text in (
            (lambda: comm.allgather("w", shard[:63]), ciera.ShardChangedError, "reset"),
            (
                lambda: comm.allgather("w", shard.astype(np.float16)),
                ciera.ShardChangedError,
                "dtype",
            ),
            (lambda: comm.allgather("w", shard, out=shard), ciera.ArgumentError, "256 bytes where"),
            (lambda: comm.allgather("w", shard, out=np.zeros(64)), ciera.ArgumentError, "float64"),
            (lambda: comm.allgather(1.5, shard), ciera.ArgumentError, "str or an int"),
            (lambda: comm.allgather("w", shard, dtype="bf16"), ciera.ArgumentError, "2-byte"),
            (lambda: comm.allgather_segments([("w", 3)], shard), ciera.ArgumentError, "numel"),
        ):
            with pytest.raises(error, match=text):
                call()
        comm.reset("w")
        comm.allgather("w", shard[:63])
        comm.close()
        comm.close()
        with pytest.raises(ciera.ClosedError, match="shard 'w', rank"):
            comm.allgather("w", shard)

    on_ranks(2, body)


BAD_CALLS: dict[str, Callable[[Any, np.ndarray], Any]] = {
    "segments of no pairs": lambda comm, one: comm.allgather_segments(["a"], one),
    "segments that are no sequence": lambda comm, one: comm.allgather_segments(7, one),
    "numel beyond 64 bits": lambda comm, one: comm.allgather_segments([("w", 2**64)], one),
    "numel of no number": lambda comm, one: comm.allgather_segments([("w", None)], one),
    "no segment": lambda comm, one: comm.allgather_segments([], one),
    "a bool as shard_id": lambda comm, one: comm.allgather(True, one),
    "a surrogate in shard_id": lambda comm, one: comm.allgather("\ud800", one),
    "a dtype of no name": lambda comm, one: comm.allgather("w", one, dtype=[]),
    "out that is no list": lambda comm, one: comm.allgather_segments(
        [("w", one.size)], one, out=np.zeros(2 * one.size, one.dtype), per_segment=True
    ),
}


@pytest.mark.parametrize("what", BAD_CALLS)
def test_a_bad_call_on_one_rank_raises_on_every_rank(what: str) -> None:
    one = np.zeros(64, np.float32)

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        error = ciera.ArgumentError if rank == 1 else ciera.PeerFailedError
        with pytest.raises(error, match="rank 1"):
            BAD_CALLS[what](comm, one) if rank == 1 else comm.allgather("w", one)
        comm.allgather("w", one)

    on_ranks(2, body)


def test_an_array_that_fails_to_export_is_told_to_the_peers() -> None:
    class Broken:
        def __dlpack__(self, **_: Any) -> Any:
            raise KeyError("no memory here")

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        error = ciera.ArgumentError if rank == 1 else ciera.PeerFailedError
        with pytest.raises(error, match=r"rank 1: .*no memory here"):
            comm.allgather("w", Broken() if rank == 1 else np.zeros(8, np.float32))

    on_ranks(2, body)


def test_numpy_integers_name_shards_and_lengths() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, block_size=np.int32(64), threads=np.uint8(1))
        src = np.arange(30, dtype=np.float32)
        comm.allgather_segments([(np.int64(3), np.int32(10)), (4, np.uint16(20))], src)
        assert comm.stats(3)["values"] == 10
        assert comm.stats(np.int8(4))["values"] == 20

    on_ranks(2, body)


def test_long_names_do_not_drown_a_message() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        shard = np.zeros(8, np.float32 if rank == 0 else np.float16)
        with pytest.raises(ciera.RankMismatchError, match=r"dtype=fp16.*block_size") as raised:
            comm.allgather("ü" * 5000, shard)
        assert len(str(raised.value)) < 3000

    on_ranks(2, body)


def test_timeouts_out_of_range_raise() -> None:
    for timeout in (-1.0, float("nan")):
        with pytest.raises(ciera.ArgumentError, match="timeout"):
            ciera.loopback(1, timeout=timeout)
    (transport,) = ciera.loopback(1, timeout=float("inf"))
    handle = ciera.CompressedAllgather(transport).allgather_async("w", np.zeros(8, np.float32))
    assert handle.wait(1e300).size == 8


def test_options_out_of_range_raise() -> None:
    (transport,) = ciera.loopback(1)
    for options in (
        {"reuse": "exponent"},
        {"coder": "zip"},
        {"block_size": 100},
        {"block_size": 0},
        {"block_size": 2**40},
        {"block_size": True},
        {"block_size": 64.0},
        {"cache_budget_bytes": -1},
        {"cache_budget_bytes": 2**70},
        {"threads": -1},
        {"threads": 10**6},
        {"reuse": None},
        {"coder": 3},
    ):
        with pytest.raises(ciera.ArgumentError):
            ciera.CompressedAllgather(transport, **options)  # type: ignore[arg-type]
    with pytest.raises(ciera.ArgumentError, match="no transport"):
        ciera.CompressedAllgather(object())


def test_two_threads_at_once_are_refused() -> None:
    from ciera import _native

    class Alone:
        rank, world_size, name, local_world_size, supports_counts = 0, 1, "alone", 1, True
        inside, go_on = threading.Event(), threading.Event()

        def allgather(self, send: Any, recv: Any) -> None:
            self.inside.set()
            self.go_on.wait(30)
            recv[:] = send

    comm = ciera.CompressedAllgather(_native.callback_transport(Alone()))
    shard = np.zeros(8, np.float32)
    first = threading.Thread(target=lambda: comm.allgather("w", shard))
    first.start()
    assert Alone.inside.wait(30)
    for use in (lambda: comm.allgather("w", shard), comm.close, comm.reset):
        with pytest.raises(ciera.ConcurrentCallError, match="rank 0: two threads"):
            use()
    Alone.go_on.set()
    first.join()
    comm.allgather("w", shard)


def test_header_and_rows_of_a_steady_call_take_128_bytes() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        shard = distributions("bf16", 4096, seed=rank)["weights"]
        comm.allgather("w", shard, dtype="bf16")
        before = comm.stats()["wire_bytes"]
        comm.allgather("w", shard, dtype="bf16")
        bitmap, sign_mantissa = 16, 4096  # one byte of bits, padded
        assert comm.stats()["wire_bytes"] - before == 128 + bitmap + sign_mantissa

    on_ranks(2, body)


def test_memory_follows_the_formulas() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, block_size=64)
        comm.allgather("w", np.zeros(1000, np.float32))
        memory = comm.memory()
        assert memory["exp_cache"] == 2 * 1000  # 1 byte a remote value, two peers
        assert memory["hash_cache"] == 16 * 16  # 16 bytes a block of the own shard
        assert memory["staged_hashes"] == memory["hash_cache"]
        assert memory["total"] == sum(v for k, v in memory.items() if k != "total")

    on_ranks(3, body)
