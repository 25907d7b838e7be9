from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__version__: str
WIRE_VERSION: int

Buffer = Any
Place = Any  # a buffer, or (address, bytes)

class Transport:
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def local_world_size(self) -> int: ...
    @property
    def supports_counts(self) -> bool: ...
    def allgather(self, send: Buffer, recv: Buffer) -> None: ...
    def allgatherv(
        self, send: Buffer, recv: Buffer, counts: Sequence[int], offsets: Sequence[int]
    ) -> None: ...
    def abort(self, reason: str) -> None: ...

def loopback(world_size: int, timeout_s: float) -> list[Transport]: ...
def callback_transport(impl: object) -> Transport: ...
def nccl_library() -> tuple[bool, str]: ...
def nvcomp_support() -> tuple[bool, str]: ...
def nccl_unique_id() -> bytes: ...
def nccl(
    unique_id: bytes, rank: int, world_size: int, device: int, timeout_s: float
) -> Transport: ...
def adopt_nccl(comm_pointer: int, device: int, timeout_s: float) -> Transport: ...
def cuda_support() -> tuple[bool, str]: ...
def device_of(pointer: int) -> int | None: ...

class DlpackView:
    def __init__(self, capsule: object) -> None: ...
    @property
    def pointer(self) -> int: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def strides(self) -> list[int] | None: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def device(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> tuple[int, int, int]: ...

def cpu_features() -> list[str]: ...
def encode_frame(
    src: bytes,
    *,
    mode: str,
    coder: str,
    dtype: str,
    block_size: int,
    shard_id: str | int,
    base_epoch: int,
    base_digest: int,
    hashes: bytes,
    reference: bytes = b"",
    effort: str = "default",
    segment_log2: int = 16,
    words: bytes | None = None,
) -> tuple[bytes, bytes]: ...
def decode_frame(
    frame: bytes,
    *,
    mode: str,
    dtype: str,
    block_size: int,
    numel: int,
    shard_id: str | int,
    base_epoch: int,
    base_digest: int,
    exponents: bytes,
    words: bytes | None = None,
) -> tuple[str, bytes, bytes]: ...

class Call:
    def done(self) -> bool: ...
    def wait(self, timeout_s: float | None = None) -> None: ...
    def outputs(self) -> list[npt.NDArray[np.uint8]] | list[tuple[int, int]]: ...

class ShardBuffer:
    @property
    def place(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def numels(self) -> list[int]: ...
    @property
    def attached(self) -> bool: ...

def export_dlpack(
    pointer: int,
    numel: int,
    device: tuple[int, int],
    dtype: tuple[int, int],
    owner: object,
    versioned: bool,
) -> object: ...

class Communicator:
    def __init__(
        self,
        transport: Transport,
        *,
        reuse: str,
        coder: str,
        block_size: int,
        cache_budget_bytes: int | None,
        threads: int,
        backend: str,
        device: int,
        effort: str,
        check_versions: bool,
        check_buffers: bool,
        plain_below_bytes: int | None,
    ) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def plain_below_bytes(self) -> int | None: ...
    def gather(
        self,
        segments: Sequence[tuple[str | int, int]],
        dtype: str,
        element_type: str,
        src: Place,
        out: Sequence[Place] | None,
        per_segment: bool,
        stream: int,
        keep: object,
        versions: Sequence[str | int | None],
        *,
        async_op: bool,
    ) -> Call: ...
    def reject(self, segments: Sequence[tuple[str | int, int]], message: str) -> None: ...
    def buffer(
        self, shard_id: str | int, dtype: str | None, numels: Sequence[int]
    ) -> ShardBuffer: ...
    def reset(self, shard_id: str | int | None = None) -> None: ...
    def stats(self, shard_id: str | int | None = None) -> dict[str, int]: ...
    def memory(self) -> dict[str, int]: ...
    def close(self, patience_s: float | None = None) -> None: ...
    def leave(self, patience_s: float) -> None: ...
