"""The all-gather of arrays in GPU memory. Every test is skipped, with the reason, without a GPU."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import ciera
import numpy as np
import pytest
from ciera.cli import MODES
from ciera.devices import cuda_support
from ciera.transports.nccl import library
from test_allgather import WORDS, distributions, on_ranks
from test_transports import ONE_GPU, SAMPLE, mpirun

DEVICE = "cuda:0"
WORKER = Path(__file__).with_name("cuda_worker.py")


@pytest.fixture(autouse=True)
def gpu() -> None:
    """The one place that says whether there is a GPU."""
    available, detail = cuda_support()
    if not available:
        pytest.skip(detail)


@pytest.fixture
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("this torch sees no GPU")
    return module


def signed(words: Any) -> Any:
    return np.ascontiguousarray(words).view(f"i{words.dtype.itemsize}")


class TorchKit:
    """Words as torch tensors; int16 and int32, whose bits dtype= names."""

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch")
        if not self.torch.cuda.is_available():
            pytest.skip("this torch sees no GPU")

    def put(self, words: Any) -> Any:
        return self.torch.from_numpy(signed(words)).to(DEVICE)

    def get(self, array: Any) -> Any:
        assert isinstance(array, self.torch.Tensor)
        assert str(array.device) == DEVICE
        host = array.cpu().numpy()
        return host.view(f"u{host.dtype.itemsize}")


class CupyKit:
    def __init__(self) -> None:
        self.cupy = pytest.importorskip("cupy")

    def put(self, words: Any) -> Any:
        return self.cupy.asarray(np.ascontiguousarray(words))

    def get(self, array: Any) -> Any:
        assert isinstance(array, self.cupy.ndarray)
        return self.cupy.asnumpy(array)


class Shown:
    """Nothing but __cuda_array_interface__ (version 2 or 3) over a tensor of torch."""

    def __init__(self, tensor: Any, version: int, stream: int | None) -> None:
        self.tensor = tensor
        width = tensor.element_size()
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": f"<u{width}",
            "data": (tensor.data_ptr(), False),
            "version": version,
            **({"stream": stream} if version == 3 else {}),
        }


class InterfaceKit(TorchKit):
    """What torch put on its default stream, shown without torch."""

    def __init__(self, version: int = 3) -> None:
        super().__init__()
        self.version = version

    def put(self, words: Any) -> Any:
        return Shown(super().put(words), self.version, 1)

    def get(self, array: Any) -> Any:
        if isinstance(array, Shown):
            return super().get(array.tensor)
        interface = array.__cuda_array_interface__
        width = int(interface["typestr"][2:])
        assert interface["typestr"] == f"<u{width}"
        plain = Shown.__new__(Shown)  # uint8, which torch has always known
        plain.tensor = array
        plain.__cuda_array_interface__ = {
            **interface, "shape": (len(array) * width,), "typestr": "|u1",
        }  # fmt: skip
        if len(array) == 0:
            return np.empty(0, f"u{width}")
        return self.torch.as_tensor(plain, device=DEVICE).cpu().numpy().view(f"u{width}")


class OnlyDlpack:
    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return self.tensor.__dlpack__(stream=stream)


class DlpackKit(InterfaceKit):
    def put(self, words: Any) -> Any:
        return OnlyDlpack(TorchKit.put(self, words))

    def get(self, array: Any) -> Any:
        if isinstance(array, OnlyDlpack):
            return TorchKit.get(self, array.tensor)
        interface = array.__cuda_array_interface__
        assert interface["typestr"][1] == "i"
        interface["typestr"] = interface["typestr"].replace("i", "u")
        return super().get(array)


KITS = {
    "torch": TorchKit,
    "cupy": CupyKit,
    "interface 2": lambda: InterfaceKit(2),
    "interface 3": lambda: InterfaceKit(3),
    "dlpack": DlpackKit,
}


def any_kit() -> Any:
    """Torch where it sees the GPU, else CuPy."""
    try:
        return TorchKit()
    except pytest.skip.Exception:
        return CupyKit()


def drift(words: Any, step: int) -> Any:
    return words ^ (np.arange(len(words)) % 97 < step).astype(words.dtype)


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("mode", MODES)
def test_every_distribution_and_length_round_trips(mode: str, dtype: str, world_size: int) -> None:
    kit = any_kit()
    # 0 and 1; below, at and above a block; not a multiple of 8; several tiles and segments
    for numel in (0, 1, 63, 64, 65, 1003, 140001):
        shards = [distributions(dtype, numel + rank, seed=rank) for rank in range(world_size)]

        def body(rank: int, transport: Any, shards: Any = shards) -> None:
            with ciera.CompressedAllgather(
                transport, reuse=mode, block_size=64, device=DEVICE
            ) as comm:
                assert comm.device == DEVICE
                for name in shards[0]:
                    for step in range(3):
                        moved = [drift(one[name], step) for one in shards]
                        out = comm.allgather("w", kit.put(moved[rank]), dtype=dtype)
                        assert np.array_equal(kit.get(out), np.concatenate(moved)), (name, step)

        on_ranks(world_size, body)


@pytest.mark.parametrize("kit_name", KITS)
def test_every_kind_of_array_gathers_with_and_without_out(kit_name: str) -> None:
    kit = KITS[kit_name]()
    for dtype in WORDS:
        shards = [distributions(dtype, 3001 + r, seed=r)["weights"] for r in range(2)]

        def body(rank: int, transport: Any, dtype: str = dtype, shards: Any = shards) -> None:
            comm = ciera.CompressedAllgather(transport, device=DEVICE)
            for step in range(3):
                moved = [drift(one, step) for one in shards]
                expected = np.concatenate(moved)
                own = kit.put(moved[rank])
                assert np.array_equal(kit.get(comm.allgather("w", own, dtype=dtype)), expected)
                out = kit.put(np.zeros_like(expected))
                assert comm.allgather("w", own, out=out, dtype=dtype) is out
                assert np.array_equal(kit.get(out), expected)
            empty = comm.allgather("empty", kit.put(shards[0][:0]), dtype=dtype)
            assert len(kit.get(empty)) == 0

        on_ranks(2, body)


def test_torch_types_come_back_detached(torch: Any) -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, device=torch.device(DEVICE))
        for kind in (torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.bool):
            shards = [(torch.arange(100 + r) % 3).to(DEVICE, kind) for r in range(2)]
            out = comm.allgather(str(kind), shards[rank])
            assert out.dtype == kind
            assert torch.equal(out, torch.cat(shards))
        weight = torch.nn.Parameter(torch.ones(64, device=DEVICE))
        out = comm.allgather("weight", weight)
        assert not out.requires_grad
        assert torch.equal(out, torch.ones(128, device=DEVICE))

    on_ranks(2, body)


@pytest.mark.parametrize("mode", MODES)
def test_in_place_and_segments(mode: str) -> None:
    kit = any_kit()
    world_size = 3
    lengths = [("a", 1000), ("empty", 0), ("b", 2001)]
    total = sum(numel for _, numel in lengths)

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse=mode, block_size=64, device=DEVICE)
        for step in range(3):
            src = [
                drift(distributions("bf16", total, seed=r)["weights"], step)
                for r in range(world_size)
            ]
            out = kit.put(np.concatenate(src) * (np.arange(total * world_size) // total == rank))
            own = out[total * rank : total * (rank + 1)]
            assert comm.allgather("in place", own, out=out, dtype="bf16") is out
            assert np.array_equal(kit.get(out), np.concatenate(src))

            flat = comm.allgather_segments(lengths, kit.put(src[rank]), dtype="bf16")
            assert np.array_equal(kit.get(flat), np.concatenate(src))
            a, empty, b = comm.allgather_segments(
                lengths, kit.put(src[rank]), dtype="bf16", per_segment=True
            )
            assert np.array_equal(kit.get(a), np.concatenate([one[:1000] for one in src]))
            assert len(kit.get(empty)) == 0
            assert np.array_equal(kit.get(b), np.concatenate([one[1000:] for one in src]))

    on_ranks(world_size, body)


def test_async_calls_hold_what_their_caller_let_go() -> None:
    kit = any_kit()

    def words(step: int, rank: int) -> Any:
        return np.full(200_000, 100 * rank + step, np.uint32)

    def body(rank: int, transport: Any) -> None:
        with ciera.CompressedAllgather(transport, device=DEVICE) as comm:
            comm.allgather_async("dropped", kit.put(words(0, rank)), dtype="fp32")
            handles = [
                comm.allgather_async("w", kit.put(words(step, rank)), dtype="fp32")
                for step in range(6)
            ]
            # Memory that was given back too early would be taken and overwritten here.
            noise = [kit.put(np.full(200_000, 9999, np.uint32)) for _ in range(6)]
            for step, handle in enumerate(handles):
                expected = np.concatenate([words(step, r) for r in range(2)])
                assert np.array_equal(kit.get(handle.wait(60)), expected)
                assert handle.done()
            del noise

    on_ranks(2, body)


def test_results_outlive_their_communicator() -> None:
    kit = any_kit()
    shard = distributions("bf16", 5000, seed=1)["weights"]

    def body(rank: int, transport: Any) -> Any:
        comm = ciera.CompressedAllgather(transport, device=DEVICE)
        kept = comm.allgather("w", kit.put(shard), dtype="bf16")
        comm.close()
        del comm
        return kept

    results = on_ranks(2, body)
    gc.collect()
    for result in results:
        assert np.array_equal(kit.get(result), np.concatenate([shard, shard]))


@pytest.mark.parametrize("how", ["current", "stated", "address"])
def test_a_gather_waits_for_torch_work_of_its_stream_only_there(torch: Any, how: str) -> None:
    numel = 100_000

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, device=DEVICE)
        for step in range(1, 4):
            src = torch.zeros(numel, device=DEVICE)
            side = torch.cuda.Stream(DEVICE)
            side.wait_stream(torch.cuda.current_stream(DEVICE))
            with torch.cuda.stream(side):
                torch.cuda._sleep(100_000_000)  # cycles: some 50 ms before src is filled
                src.fill_(10 * step + rank)
                if how == "current":
                    handle = comm.allgather_async("w", src)
            if how == "stated":
                handle = comm.allgather_async("w", src, stream=side)
            elif how == "address":
                handle = comm.allgather_async("w", src, stream=side.cuda_stream)
            expected = torch.cat([torch.full((numel,), 10.0 * step + r) for r in range(2)])
            result = handle.wait(60)
            with torch.cuda.stream(torch.cuda.Stream(DEVICE)):  # complete for every stream
                assert torch.equal(result.cpu(), expected)

    on_ranks(2, body)


def test_out_is_written_after_what_its_stream_still_reads(torch: Any) -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, device=DEVICE)
        src = torch.full((50_000,), 7.0, device=DEVICE)
        out = torch.full((100_000,), 3.0, device=DEVICE)
        seen = torch.zeros_like(out)
        side = torch.cuda.Stream(DEVICE)
        side.wait_stream(torch.cuda.current_stream(DEVICE))
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)
            seen.copy_(out)
            comm.allgather("w", src, out=out)
        torch.cuda.synchronize(DEVICE)
        assert bool((seen == 3.0).all())
        assert bool((out == 7.0).all())

    on_ranks(2, body)


def test_a_gather_waits_for_cupy_work_of_its_stream() -> None:
    cupy = CupyKit().cupy

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, device=DEVICE)
        with cupy.cuda.Device(0):
            large = cupy.zeros(1 << 26, cupy.float32)
            src = cupy.zeros(100_000, cupy.float32)
            cupy.cuda.get_current_stream().synchronize()
            with cupy.cuda.Stream(non_blocking=True):
                for _ in range(100):
                    large += 1
                src[:] = large[: src.size] + rank
                result = comm.allgather("w", src)
            expected = np.repeat(np.float32([100, 101]), 100_000)
            assert np.array_equal(cupy.asnumpy(result), expected)

    on_ranks(2, body)


def test_arrays_of_different_streams_need_a_stated_one(torch: Any) -> None:
    (transport,) = ciera.loopback(1)
    comm = ciera.CompressedAllgather(transport, device=DEVICE)
    streams = [torch.cuda.Stream(DEVICE) for _ in range(2)]
    src, out = (
        Shown(torch.full((64,), fill, dtype=torch.int32, device=DEVICE), 3, one.cuda_stream)
        for fill, one in zip((5, 0), streams, strict=True)
    )
    torch.cuda.synchronize(DEVICE)
    with pytest.raises(ciera.ArgumentError, match="different streams"):
        comm.allgather("w", src, out=out)
    comm.allgather("w", src, out=out, stream=streams[0])
    assert bool((out.tensor == 5).all())


def test_an_array_elsewhere_is_told_to_every_rank(torch: Any) -> None:
    here, there = torch.ones(100, device=DEVICE), torch.ones(100)

    def body(rank: int, transport: Any) -> None:
        error = ciera.WrongDeviceError if rank == 1 else ciera.PeerFailedError
        for device, good, wrong in ((DEVICE, here, there), ("cpu", there, here)):
            comm = ciera.CompressedAllgather(transport, device=device)
            comm.allgather("w", good)
            with pytest.raises(error, match=f"rank 1: the Tensor is on .*works on {device}; pass"):
                comm.allgather("w", wrong if rank == 1 else good)
            with pytest.raises(error, match=f"works on {device}"):
                comm.allgather("w", good, out=torch.cat([wrong, wrong]) if rank == 1 else None)
            comm.allgather("w", good)
            assert comm.stats("w")["delta_frames"] == 1
            comm.close()

    on_ranks(2, body)


def test_bad_gpu_arrays_raise(torch: Any) -> None:
    (transport,) = ciera.loopback(1)
    comm = ciera.CompressedAllgather(transport, device=DEVICE)
    grid = torch.zeros((4, 4), device=DEVICE)
    for wrong, text in (
        (grid, "1-D"),
        (grid.view(-1)[::2], "contiguous"),
        (torch.zeros(4, dtype=torch.complex64, device=DEVICE).conj(), "resolve_conj"),
        (Shown(torch.zeros(4), 3, None), "no GPU memory"),
        ([1.0], "no array"),
    ):
        with pytest.raises(ciera.ArgumentError, match=text):
            comm.allgather("w", wrong)
    with pytest.raises(ciera.ArgumentError, match="does not exist"):
        ciera.CompressedAllgather(ciera.loopback(1)[0], device=4096)


def test_another_gpu_is_a_wrong_device(torch: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    (transport,) = ciera.loopback(1)
    comm = ciera.CompressedAllgather(transport, device=1)
    with pytest.raises(ciera.WrongDeviceError, match=r"is on cuda:0, .* cuda:1"):
        comm.allgather("w", torch.zeros(4, device="cuda:0"))
    shard = torch.arange(1000.0, device="cuda:1")  # cuda:0 is the thread's current one
    out = comm.allgather("w", shard)
    assert out.device == shard.device
    assert torch.equal(out, shard)


def test_a_call_that_found_no_memory_changes_nothing_and_can_be_repeated(torch: Any) -> None:
    numel = 1 << 26
    meet = threading.Barrier(2)
    raised: list[type] = []

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, device=DEVICE)
        small = torch.arange(1000.0, device=DEVICE)
        comm.allgather("small", small)
        large = torch.full((numel,), 1.5 + rank, device=DEVICE)
        meet.wait(60)
        hog = None
        if rank == 0:
            torch.cuda.synchronize(DEVICE)
            torch.cuda.empty_cache()
            left, _ = torch.cuda.mem_get_info(DEVICE)
            hog = torch.empty(left - (256 << 20), dtype=torch.uint8, device=DEVICE)
        meet.wait(60)
        with pytest.raises((ciera.OutOfMemoryError, ciera.PeerFailedError)) as error:
            comm.allgather("large", large)  # its result alone takes twice 256 MiB
        raised.append(error.type)
        meet.wait(60)
        if rank == 0:
            del hog
            torch.cuda.empty_cache()
        meet.wait(60)
        comm.allgather("small", small)
        assert comm.stats("small")["delta_frames"] == 1
        result = comm.allgather("large", large)
        assert bool((result[:numel] == 1.5).all())
        assert bool((result[numel:] == 2.5).all())

    on_ranks(2, body)
    assert ciera.OutOfMemoryError in raised


def replayed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    return results


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_a_trace_replays_over_loopback(world_size: int) -> None:
    any_kit()
    command = [sys.executable, "-m", "ciera.cli", "replay", str(SAMPLE), "--device", "cuda",
               "--world-size", str(world_size), "--reuse", "all", "--json", "-"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    for mode in replayed(done)["modes"].values():
        assert mode["total"]["bitwise_equal"] is True
        assert mode["total"]["mismatches"] == 0


def on_one_gpu(ranks: int, *command: str) -> subprocess.CompletedProcess[str]:
    available, why = library()
    if not available:
        pytest.skip(why)
    return subprocess.run(
        [str(ONE_GPU), str(ranks), sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=580,
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_gpu_arrays_gather_over_nccl(ranks: int, torch: Any) -> None:
    done = on_one_gpu(ranks, str(WORKER))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("gathered") == ranks


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_trace_replays_over_nccl(ranks: int, torch: Any) -> None:
    done = on_one_gpu(ranks, "-m", "ciera.cli", "replay", str(SAMPLE), "--device", "cuda",
                      "--transport", "nccl", "--reuse", "all", "--json", "-")  # fmt: skip
    for mode in replayed(done)["modes"].values():
        assert mode["total"]["bitwise_equal"] is True
        assert mode["total"]["steady"]["raw_bytes"] > 0


def test_a_trace_replays_over_mpi_staged_through_the_host() -> None:
    pytest.importorskip("mpi4py")
    any_kit()
    done = mpirun(2, "-m", "ciera.cli", "replay", str(SAMPLE), "--transport", "mpi", "--device",
                  "cuda", "--steps", "2")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("bit for bit") == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_buffer_of_the_library_lies_under_torch_and_serves_as_out(torch: Any, mode: str) -> None:
    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport, reuse=mode, device=DEVICE, check_buffers=True)
        buffer = comm.buffer("w", [3000, 1001], dtype=torch.bfloat16)
        full = torch.from_dlpack(buffer)
        assert (full.dtype, str(full.device), len(full)) == (torch.bfloat16, DEVICE, 4001)
        assert not full.any()
        assert full.data_ptr() == buffer.__cuda_array_interface__["data"][0]
        assert buffer.device == DEVICE
        own = full[buffer.slice_of(rank)]
        for step in range(6):
            shards = [
                torch.linspace(-1, 1 + step // 2, n, device=DEVICE).to(torch.bfloat16)
                for n in (3000, 1001)
            ]
            if step < 3:
                assert comm.allgather("w", shards[rank], out=buffer) is buffer
            else:
                own.copy_(shards[rank])
                assert comm.allgather("w", own, out=full) is full
            assert torch.equal(full, torch.cat(shards))
        assert comm.memory()["buffers"] == 2 * 4001
        with pytest.raises(ciera.WrongDeviceError):
            ciera.CompressedAllgather(ciera.loopback(1)[0]).allgather("w", full.cpu(), out=buffer)
        comm.close()
        del comm, buffer, own
        gc.collect()
        assert torch.equal(full, torch.cat(shards))

    on_ranks(2, body)
