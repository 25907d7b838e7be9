"""Devices, GPU arrays and streams as far as they can be seen without a GPU."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import ciera
import numpy as np
import pytest
from ciera import _native, replay
from ciera.buffers import view_of
from ciera.cuda_arrays import DeviceArray, common_stream, device_result, stream_handle
from ciera.devices import CPU, Device, cuda_support, parse_device
from test_allgather import on_ranks

SAMPLE = Path(__file__).parents[1] / "data/sample_trace.npz"
GPU = Device(0)


class Interface:
    """An array on a GPU as others see it; its memory is never touched."""

    def __init__(self, **changes: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (8,), "typestr": "<f4", "data": (0, False), "version": 3, **changes,
        }  # fmt: skip


class OnlyDlpack:
    """Shows ``array`` through DLPack as if it lay on a GPU."""

    def __init__(self, where: tuple[int, int]) -> None:
        self._where = where
        self.stream: int | None = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._where

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.stream = stream
        return np.arange(8, dtype=np.int16).__dlpack__()


class Stream:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def test_devices_are_named_as_torch_names_them() -> None:
    torch = pytest.importorskip("torch")
    for given, expected in (
        (None, "cpu"),
        ("cpu", "cpu"),
        ("cuda:1", "cuda:1"),
        (3, "cuda:3"),
        (np.int64(2), "cuda:2"),
        (torch.device("cpu"), "cpu"),
        (torch.device("cuda", 4), "cuda:4"),
    ):
        assert str(parse_device(given)) == expected
    if not cuda_support()[0]:
        assert str(parse_device("cuda")) == "cuda:0"
    for wrong in (
        "gpu",
        "cuda:",
        "cuda:-1",
        "cuda:x",
        -1,
        True,
        1.5,
        2**40,
        [],
        torch.device("meta"),
    ):
        with pytest.raises(ciera.ArgumentError, match="device="):
            parse_device(wrong)


def test_support_says_which_gpu_or_why_none() -> None:
    available, detail = cuda_support()
    assert detail
    if not available:
        for device in ("cuda", "cuda:1", 0):
            with pytest.raises(ciera.NoDeviceError, match=r"CUDA|GPU"):
                ciera.CompressedAllgather(ciera.loopback(1)[0], device=device)
    assert _native.device_of(0) is None
    assert _native.device_of(np.zeros(8).ctypes.data) is None


def test_a_communicator_says_its_device() -> None:
    assert ciera.CompressedAllgather(ciera.loopback(1)[0]).device == "cpu"
    assert ciera.CompressedAllgather(ciera.loopback(1)[0], device="cpu").device == "cpu"


def test_a_gpu_array_on_a_cpu_communicator_is_told_to_every_rank() -> None:
    good = np.zeros(8, np.float32)

    def body(rank: int, transport: Any) -> None:
        comm = ciera.CompressedAllgather(transport)
        for wrong in (Interface(shape=(0,)), OnlyDlpack((2, 0))):
            error = ciera.WrongDeviceError if rank == 1 else ciera.PeerFailedError
            with pytest.raises(error, match=r"rank 1: .* GPU|cuda:0.* works on cpu; pass"):
                comm.allgather("w", wrong if rank == 1 else good)
            with pytest.raises(error, match="works on cpu"):
                comm.allgather("w", good, out=wrong if rank == 1 else None)
        comm.allgather("w", good)

    # A capsule of numpy says cpu whatever the object said.
    with pytest.raises(ciera.WrongDeviceError, match="works on cuda:1"):
        view_of(OnlyDlpack((2, 0)), device=Device(1))
    on_ranks(2, body)


def test_a_cpu_array_for_a_gpu_is_a_wrong_device_and_a_list_is_none() -> None:
    torch = pytest.importorskip("torch")
    for array in (np.zeros(4, np.float32), bytearray(8), torch.zeros(4)):
        with pytest.raises(ciera.WrongDeviceError, match=r"is on cpu, .* cuda:0; pass .*'cpu'"):
            view_of(array, device=GPU)
    with pytest.raises(ciera.WrongDeviceError, match="is on meta") as raised:
        view_of(torch.empty(4, device="meta"), device=GPU)
    assert "with device" not in str(raised.value)
    with pytest.raises(ciera.ArgumentError, match="no array"):
        view_of([1.0], device=GPU)


def test_the_interface_is_read_with_its_stream() -> None:
    view = view_of(Interface(shape=(0,), stream=7, strides=(4,)), device=GPU)
    assert (view.data, view.dtype, view.numel) == ((0, 0), "fp32", 0)
    assert view.gpu is not None
    assert view.gpu.stream == 7
    assert view_of(Interface(shape=(0,), version=2), device=GPU).gpu.stream is None  # type: ignore[union-attr]
    words = view_of(Interface(shape=(0,), typestr="<u2"), device=GPU, dtype="bf16")
    assert words.dtype == "bf16"
    for change, text in (
        ({"shape": (0, 2)}, "1-D"),
        ({"stream": 0}, "ambiguous"),
        ({"typestr": ">f4"}, "byte order"),
        ({"typestr": 3.5}, "cannot be read"),
        ({"data": None}, "cannot be read"),
        ({"mask": object()}, "mask"),
    ):
        with pytest.raises(ciera.ArgumentError, match=text):
            view_of(Interface(**{"shape": (0,), **change}), device=GPU)
    with pytest.raises(ciera.ArgumentError, match="read-only"):
        view_of(Interface(shape=(0,), data=(0, True)), device=GPU, writable=True)


@pytest.mark.skipif(
    cuda_support()[0], reason="addresses that are made up need no GPU to judge them"
)
def test_only_arrays_without_gaps_are_taken() -> None:
    def read(**changes: Any) -> Any:
        return view_of(Interface(data=(4096, False), **changes), device=GPU)

    assert read(strides=(4,)).data == (4096, 32)
    assert read(strides=None).data == (4096, 32)
    assert read(shape=(1,), strides=(400,)).data == (4096, 4)
    with pytest.raises(ciera.ArgumentError, match=r"contiguous 1-D .* \(8,\)"):
        read(strides=(8,))
    with pytest.raises(ciera.ArgumentError, match="contiguous 1-D"):
        read(shape=(2, 4))


def test_dlpack_arrays_are_made_ready_on_the_stream_of_the_call() -> None:
    # What the capsule says decides: numpy's says cpu, ordinal 0, which stands in for a GPU here.
    array = OnlyDlpack((2, 0))
    view = view_of(array, device=GPU)
    assert view.gpu is not None
    assert (view.dtype, view.numel, array.stream, view.gpu.stream) == ("opaque16", 8, 1, 1)
    view_of(array, device=GPU, stream=77, dtype="fp16")
    assert array.stream == 77
    capsule = np.zeros(4, np.float32).__dlpack__()
    first = _native.DlpackView(capsule)
    assert first.dtype == (2, 32, 1)
    with pytest.raises(ciera.ArgumentError, match="used one"):
        _native.DlpackView(capsule)


def test_streams_are_addresses_or_objects_of_torch_and_cupy() -> None:
    torch_like = Stream(cuda_stream=5, device=Stream(index=0))
    cupy_like = Stream(ptr=6, device_id=-1)
    protocol = Stream(__cuda_stream__=lambda: (0, 9))
    for given, expected in (
        (None, None), (0, 0), (4096, 4096), (torch_like, 5), (cupy_like, 6), (protocol, 9),
    ):  # fmt: skip
        assert stream_handle(given, GPU) == expected
    for wrong in ("default", -1, True, 2**64, 1.5):
        with pytest.raises(ciera.ArgumentError, match="stream="):
            stream_handle(wrong, GPU)
    with pytest.raises(ciera.WrongDeviceError, match="cuda:0"):
        stream_handle(torch_like, Device(1))
    comm = ciera.CompressedAllgather(ciera.loopback(1)[0])
    with pytest.raises(ciera.ArgumentError, match="works on cpu"):
        comm.allgather("w", np.zeros(4, np.float32), stream=0)


def test_arrays_of_one_call_are_used_on_one_stream() -> None:
    assert common_stream([None, 5, 5, None]) == 5
    assert common_stream([0, 1, None]) == 1  # both handles are the legacy default stream
    assert common_stream([None]) == 1
    with pytest.raises(ciera.ArgumentError, match="different streams"):
        common_stream([5, 6])


def test_results_show_their_memory_and_type() -> None:
    result = device_result("owner", 4096, 20, object(), "float32", 4, 0)
    assert isinstance(result, DeviceArray)
    assert len(result) == 5
    shown = result.__cuda_array_interface__
    assert (shown["typestr"], shown["shape"], shown["data"]) == ("<f4", (5,), (4096, False))
    assert shown["stream"] is None
    for dtype, width, typestr in (
        ("bfloat16", 2, "<u2"), ("float8_e5m2", 1, "|u1"), ("bool", 1, "|b1"), ("int64", 8, "<i8"),
    ):  # fmt: skip
        other = device_result("owner", 4096, 16, object(), dtype, width, 0)
        assert other.__cuda_array_interface__["typestr"] == typestr


def test_addresses_are_taken_for_arrays_and_what_they_belong_to_is_held() -> None:
    first, second = ciera.loopback(2)
    options: dict[str, Any] = {
        "reuse": "exponent-block", "coder": "rans", "block_size": 64, "cache_budget_bytes": None,
        "threads": 1, "backend": "host", "device": 0, "effort": "default", "check_versions": False,
        "check_buffers": False, "plain_below_bytes": None,
    }  # fmt: skip
    comms = [_native.Communicator(one, **options) for one in (first, second)]
    src = np.arange(100, dtype=np.float32)
    out = np.zeros(200, np.float32)
    place, whole = (src.ctypes.data, src.nbytes), (out.ctypes.data, out.nbytes)
    kept = Stream()
    alive = weakref.ref(kept)
    call = comms[0].gather(
        [("w", 100)], "fp32", "float32", place, [whole], False, 0, [kept], [], async_op=True
    )
    del kept
    assert alive() is not None
    comms[1].gather([("w", 100)], "fp32", "float32", src, None, False, 0, None, [], async_op=False)
    call.wait(30)
    assert alive() is None
    assert np.array_equal(out, np.concatenate([src, src]))
    # Two bytes are an array, never an address and a length.
    (alone,) = ciera.loopback(1)
    two = _native.Communicator(alone, **options).gather(
        [("w", 2)], "opaque8", "uint8", np.array([1, 2], np.uint8), None, False, 0, None, [],
        async_op=False,
    )  # fmt: skip
    assert np.array_equal(two.outputs()[0], [1, 2])


class HostStandIn:
    """A native communicator of host memory that takes and gives addresses, as one of a GPU does."""

    def __init__(self, transport: Any, **options: Any) -> None:
        assert options["backend"] == "cuda"
        self._comm = _NATIVE_COMMUNICATOR(transport, **{**options, "backend": "host"})
        self.rank = self._comm.rank
        self.streams: list[int] = []

    def reject(self, segments: Any, message: str) -> None:
        self._comm.reject(segments, message)

    def gather(self, *arguments: Any, async_op: bool) -> Any:
        src, out, stream, keep = arguments[3], arguments[4], arguments[6], arguments[7]
        assert isinstance(src, tuple)
        assert len(keep) == 1 + len(out or [])
        self.streams.append(stream)
        call = self._comm.gather(*arguments, async_op=async_op)
        places = [(one.ctypes.data, one.nbytes) for one in call.outputs()] if call.done() else []
        return Stream(done=call.done, wait=call.wait, outputs=lambda: places, call=call)


_NATIVE_COMMUNICATOR = _native.Communicator


@pytest.mark.skipif(cuda_support()[0], reason="a GPU's CUDA knows that the memory is not its own")
def test_calls_of_a_gpu_communicator_pass_addresses_and_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_native, "Communicator", HostStandIn)

    def show(array: Any, **changes: Any) -> Any:
        return Interface(shape=array.shape, data=(array.ctypes.data, False), **changes)

    comm = ciera.CompressedAllgather(ciera.loopback(1)[0], device="cuda:0")
    src, out = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    shown = show(out)
    assert comm.allgather("w", show(src, stream=7), out=shown) is shown
    assert np.array_equal(out, src)
    result = comm.allgather("w", show(src), stream=Stream(ptr=9))
    interface = result.__cuda_array_interface__
    assert (interface["typestr"], interface["shape"]) == ("<f4", (100,))
    gathered = (ctypes.c_float * 100).from_address(interface["data"][0])
    assert list(gathered) == list(src)
    first, second = np.zeros(40, np.float32), np.zeros(60, np.float32)
    handle = comm.allgather_segments(
        [("a", 40), ("b", 60)], show(src), out=[show(first), show(second)], per_segment=True,
        async_op=True,
    )  # fmt: skip
    handle.wait(30)
    assert np.array_equal(np.concatenate([first, second]), src)
    with pytest.raises(ciera.ArgumentError, match="different streams"):
        comm.allgather("w", show(src, stream=7), out=show(out, stream=8))
    with pytest.raises(ciera.WrongDeviceError, match="on cpu"):
        comm.allgather("w", src)
    assert comm._comm.streams == [7, 9, 1]  # type: ignore[attr-defined]


def test_replay_on_a_gpu_that_is_not_there_exits_2_with_the_reason() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ciera.cli", "replay", str(SAMPLE), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    cases = [(("--device", "gpu"), "device='gpu'"), (("--transport", "nccl"), "--device cuda")]
    if not cuda_support()[0]:
        cases.append((("--device", "cuda"), cuda_support()[1]))
    for arguments, text in cases:
        done = run(*arguments)
        assert done.returncode == 2, done
        assert done.stdout == ""
        assert text in done.stderr
        assert "Traceback" not in done.stderr


def test_results_of_all_ranks_travel_over_the_transport() -> None:
    def body(rank: int, transport: Any) -> list[int]:
        own = {"w": replay.ShardResult(mismatches=10 ** (20 * rank))}
        return [one["w"].mismatches for one in replay.exchange(transport, own)]

    assert on_ranks(3, body) == [[1, 10**20, 10**40]] * 3


def test_cpu_stays_the_default() -> None:
    assert view_of(np.zeros(3, np.float32), device=CPU).gpu is None
