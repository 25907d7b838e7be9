"""What a call holds of its caller's arrays, for how long, and which arrays it refuses."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import ciera
import numpy as np
import pytest
from ciera.buffers import view_of
from test_allgather import on_ranks

torch = pytest.importorskip("torch")


def alone() -> ciera.CompressedAllgather:
    return ciera.CompressedAllgather(ciera.loopback(1)[0])


def test_a_tensors_storage_can_be_freed_and_grown_after_a_call() -> None:
    comm = alone()
    for step in range(3):
        shard, out = torch.arange(1000.0) + step, torch.empty(1000)
        comm.allgather("w", shard, out=out)
        result = comm.allgather("w", shard)
        assert torch.equal(result, shard)
        for one in (shard, out, result):
            size = one.untyped_storage().nbytes()
            one.untyped_storage().resize_(0)
            one.untyped_storage().resize_(size)
    parts = [comm.allgather_segments([("a", 10), ("b", 0), ("c", 20)], torch.arange(30.0),
                                     per_segment=True) for _ in range(2)]  # fmt: skip
    for a, b, c in parts:
        assert torch.equal(torch.cat([a, b, c]), torch.arange(30.0))
        c.untyped_storage().resize_(0)


def test_results_follow_lengths_over_a_reset() -> None:
    comm = alone()
    pending = comm.allgather_async("w", torch.zeros(5))
    comm.reset()
    assert pending.wait().numel() == 5
    assert comm.allgather("w", torch.zeros(7)).numel() == 7
    assert comm.allgather("w", torch.zeros(7)).numel() == 7


def freed() -> Any:
    tensor = torch.zeros(8)
    tensor.untyped_storage().resize_(0)
    return tensor


def partly_freed() -> Any:
    tensor = torch.zeros(8)[4:]
    tensor.untyped_storage().resize_(28)
    return tensor


def fake() -> Any:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(8)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "freed": (freed, "storage was freed"),
    "partly freed": (partly_freed, "storage was freed"),
    "fake": (fake, "fake tensor"),
    "meta": (lambda: torch.zeros(8, device="meta"), "meta"),
    "sparse": (lambda: torch.zeros(8).to_sparse(), "to_dense"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.zeros(8), 1, 0, torch.qint8), "int_repr"),
    "conjugate": (lambda: torch.zeros(8, dtype=torch.complex64).conj(), "resolve_conj"),
    "negative": (lambda: torch.zeros(8, dtype=torch.complex64).conj().imag, "resolve_neg|contig"),
    "zero": (lambda: torch._efficientzerotensor(8), "no memory|no access"),
    "masked": (lambda: np.ma.array(np.zeros(8, np.float32), mask=True), "mask"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_tensors_without_plain_memory_are_refused_on_every_rank(what: str) -> None:
    make, text = REFUSED[what]

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        good = np.zeros(8, np.float32)
        with pytest.raises(ciera.ArgumentError if rank else ciera.PeerFailedError, match=text):
            comm.allgather("w", make() if rank else good)
        with pytest.raises(ciera.ArgumentError if rank else ciera.PeerFailedError):
            comm.allgather("w", good, out=make() if rank else None)
        comm.allgather("w", good)

    on_ranks(2, body)


class Liar:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __dlpack_device__(self) -> Any:
        return self.where()

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule()


LIARS = {
    "no capsule": Liar(where=lambda: (1, 0), capsule=lambda: "nothing"),
    "no device": Liar(where=lambda: None, capsule=lambda: None),
    "broken": Liar(where=lambda: (1, 0), capsule=lambda: 1 // 0),
    "broken device": Liar(where=lambda: 1 // 0, capsule=lambda: None),
    "array interface": type("A", (), {"__array_interface__": {"shape": "x"}})(),
    "array interface of no memory": type("A", (), {"__array_interface__": {
        "shape": (4,), "typestr": "<f4", "data": (0, False), "version": 3}})(),
    "a property that raises": type("A", (), {"__array_interface__": property(lambda s: 1 // 0)})(),
}  # fmt: skip


@pytest.mark.parametrize("what", LIARS)
def test_arrays_that_lie_about_themselves_are_arguments(what: str) -> None:
    comm = alone()
    for use in (
        lambda: comm.allgather("w", LIARS[what]),
        lambda: comm.allgather("w", np.zeros(4, np.float32), out=LIARS[what]),
    ):
        with pytest.raises(ciera.ArgumentError, match="shard 'w', rank 0: "):
            use()


def test_a_dlpack_producer_serves_as_out() -> None:
    class Producer:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    comm = alone()
    shard = np.arange(4, dtype=np.float32)
    for array in (torch.zeros(4), np.zeros(4, np.float32)):
        out = Producer(array)
        assert comm.allgather("w", shard, out=out) is out
        assert np.array_equal(np.asarray(array), shard)
    array.flags.writeable = False
    with pytest.raises(ciera.ArgumentError, match=r"read-only as it shows itself|DLPack"):
        comm.allgather("w", shard, out=Producer(array))


def test_a_complete_call_lets_go_of_its_arrays() -> None:
    comm = alone()
    waited = bytearray(100)
    comm.allgather("bytes", waited)
    handle = comm.allgather_async("bytes", waited)
    handle.wait()
    waited.extend(b"more")
    polled = bytearray(100)
    handle = comm.allgather_async("bytes", polled)
    while not handle.done():
        pass
    polled.extend(b"more")
    dropped = bytearray(100)
    comm.allgather_async("bytes", dropped)
    comm.reset()  # waits
    dropped.extend(b"more")
    for make in (lambda: np.zeros(100, np.float32), lambda: torch.zeros(100)):
        shard = make()
        watched = weakref.ref(shard)
        handle = comm.allgather_async("w", shard)
        results = [comm.allgather("w", shard), handle.wait()]
        del shard
        gc.collect()
        assert watched() is None
        assert len(results) == 2


def test_a_failed_call_lets_go_of_its_arrays() -> None:
    comm = ciera.CompressedAllgather(ciera.loopback(2, timeout=0.05)[0])
    shard = bytearray(100)
    with pytest.raises(ciera.DeadlineError):
        comm.allgather("w", shard)
    shard.extend(b"more")


@pytest.mark.parametrize("pair", [(np.int64, np.float64), (np.uint8, np.int8)])
def test_ranks_with_different_types_of_one_width_disagree(pair: tuple[Any, Any]) -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        names = "|".join(f"{np.dtype(pair[a])}.*{np.dtype(pair[1 - a])}" for a in (0, 1))
        with pytest.raises(ciera.RankMismatchError, match=names):
            comm.allgather("w", np.zeros(4, pair[rank]))
        with pytest.raises(ciera.ArgumentError, match=f"out is {np.dtype(pair[1])}"):
            comm.allgather("w", np.zeros(4, pair[0]), out=np.zeros(8, pair[1]))
        comm.allgather("w", np.zeros(4, pair[0]))

    on_ranks(2, body)


def test_one_type_of_two_frameworks_agrees() -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        for name in ("int64", "uint8", "bool", "float64", "complex64", "int16"):
            shard = np.zeros(4, name) if rank else torch.zeros(4, dtype=getattr(torch, name))
            assert len(comm.allgather(name, shard)) == 8
        bits = np.zeros(4, np.uint16) if rank else torch.zeros(4, dtype=torch.bfloat16)
        assert len(comm.allgather("w", bits, dtype="bf16")) == 8

    on_ranks(2, body)


def test_a_transport_serves_one_communicator_at_a_time() -> None:
    from ciera import _native

    class Own:
        rank, world_size, name, local_world_size, supports_counts = 0, 1, "own", 1, True

        def allgather(self, send: Any, recv: Any) -> None:
            recv[:] = send

    for transport in (ciera.loopback(1)[0], _native.callback_transport(Own())):
        first = ciera.CompressedAllgather(transport)
        for _ in range(2):
            with pytest.raises(ciera.ArgumentError, match="serves another communicator"):
                ciera.CompressedAllgather(transport)
        first.allgather("w", np.zeros(4))
        first.close()
        second = ciera.CompressedAllgather(transport)
        del first
        with pytest.raises(ciera.ArgumentError, match="serves another communicator"):
            ciera.CompressedAllgather(transport)
        del second
        with pytest.raises(ciera.ArgumentError, match="block_size"):
            ciera.CompressedAllgather(transport, block_size=7)
        ciera.CompressedAllgather(transport).close()


def test_timeouts_of_no_number_are_arguments() -> None:
    for timeout in ("x", None, True, "3", -1, float("nan")):
        with pytest.raises(ciera.ArgumentError, match=r"timeout=.* seconds >= 0"):
            ciera.loopback(1, timeout=timeout)  # type: ignore[arg-type]
    handle = alone().allgather_async("w", np.zeros(4))
    for timeout in ("x", True, -1, []):
        with pytest.raises(ciera.ArgumentError, match="shard 'w', rank 0: timeout="):
            handle.wait(timeout)
    handle.wait()


@pytest.mark.parametrize("per_segment", [False, True])
def test_twenty_thousand_empty_segments_are_gathered(per_segment: bool) -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        segments = [(number, 0) for number in range(20_000)] + [("w", 3)]
        result = comm.allgather_segments(segments, np.ones(3, np.float32), per_segment=per_segment)
        assert sum(one.size for one in result) == 6

    on_ranks(2, body)


def test_outputs_that_meet_are_refused() -> None:
    comm = alone()
    memory = np.zeros(40, np.float32)
    segments = [("a", 8), ("none", 0), ("b", 8)]
    source = np.arange(16, dtype=np.float32)

    def gather(src: Any, *starts: int) -> Any:
        out = [memory[starts[0] : starts[0] + 8], memory[3:3], memory[starts[1] : starts[1] + 8]]
        return comm.allgather_segments(segments, src, out=out, per_segment=True)

    gather(source, 0, 8)
    gather(source, 30, 2)
    with pytest.raises(ciera.ArgumentError, match="out buffers 0 and 2 overlap"):
        gather(source, 20, 14)
    memory[:16] = source
    gather(memory[:16], 0, 8)  # in place
    for src in (memory[:16], memory[4:20], memory[20:36]):
        with pytest.raises(ciera.ArgumentError, match="not its own slot"):
            gather(src, 8, 24)


def test_no_array_of_numpys_is_made_of_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.arange(4.0)
    monkeypatch.setattr(torch.Tensor, "numpy", lambda *_: sys.exit("numpy() was called"))
    address, size = view_of(tensor).data
    assert (address, size) == (tensor.data_ptr(), 16)
