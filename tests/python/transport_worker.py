"""One rank of the transport contract, for test_transports.py: mpirun, gloo or one_gpu.sh."""

from __future__ import annotations

import sys
from typing import Any

import ciera
import numpy as np


def check_transport(transport: Any) -> None:
    """Equal and per-rank exchanges of awkward sizes, in place and apart; then the all-gather."""
    rank, world = transport.rank, transport.world_size
    for size in (0, 1, 15, 4096, 100_003):
        parts = [np.random.default_rng([r, size]).bytes(size) for r in range(world)]
        recv = bytearray(world * size)
        transport.allgather(parts[rank], recv)
        assert bytes(recv) == b"".join(parts)
        in_place = np.zeros(world * size, np.uint8)
        own = in_place[rank * size : (rank + 1) * size]
        own[:] = np.frombuffer(parts[rank], np.uint8)
        transport.allgather(own, in_place)
        assert in_place.tobytes() == b"".join(parts)
        if transport.supports_counts:
            check_counts(transport, [size + 7 * r if r != 1 else 0 for r in range(world)])
    check_allgather(transport)
    check_buffers(transport)


def check_counts(transport: Any, counts: list[int]) -> None:
    """Per-rank counts with gaps between the slots."""
    rank = transport.rank
    offsets = [sum(counts[:r]) + 16 * r for r in range(len(counts))]
    recv = bytearray(sum(counts) + 16 * len(counts))
    transport.allgatherv(bytes([rank + 1]) * counts[rank], recv, counts, offsets)
    for r, (count, offset) in enumerate(zip(counts, offsets, strict=True)):
        assert bytes(recv[offset : offset + count]) == bytes([r + 1]) * count
        assert not any(recv[offset + count : offset + count + 16])


def check_allgather(transport: Any) -> None:
    """Uneven shards over steps in every mode, and an error that reaches every rank."""
    rank, world = transport.rank, transport.world_size
    for mode in ("off", "exponent-only", "exponent-block", "exponent-delta", "word-delta"):
        with ciera.CompressedAllgather(transport, reuse=mode) as comm:
            for step in range(3):
                shards = [np.linspace(r, r + 1 + step, 1000 + r, dtype=np.float32)
                          for r in range(world)]  # fmt: skip
                assert np.array_equal(comm.allgather("w", shards[rank]), np.concatenate(shards))
            if world > 1:
                try:
                    comm.allgather(f"only rank {rank} has this", shards[rank])
                except ciera.RankMismatchError:
                    continue
                raise AssertionError("ranks that disagree were not told")


def check_buffers(transport: Any) -> None:
    """Buffers of the library, on some ranks and on all, from torch tensors where torch is there."""
    rank, world = transport.rank, transport.world_size
    numels = [1000 + r for r in range(world)]
    torch = sys.modules.get("torch")
    for mode in ("exponent-block", "exponent-delta", "word-delta"):
        for owners in {1, world}:
            with ciera.CompressedAllgather(transport, reuse=mode, check_buffers=True) as comm:
                out = comm.buffer("w", numels, dtype="fp32") if rank < owners else None
                for step in (0, 0, 1):
                    shards = [np.linspace(r, r + 1 + step, n, dtype=np.float32)
                              for r, n in enumerate(numels)]  # fmt: skip
                    shard = shards[rank] if torch is None else torch.from_numpy(shards[rank])
                    result = np.asarray(comm.allgather("w", shard, out=out))
                    assert np.array_equal(result, np.concatenate(shards))
                possible = mode == "word-delta" or owners == world
                assert comm.stats()["same_frames"] == (1 if possible else 0)


def main() -> None:
    """Makes the transport named on the command line and checks it."""
    from ciera.transports import as_transport

    if sys.argv[1] == "mpi":
        from mpi4py import MPI

        transport = as_transport(MPI.COMM_WORLD)
    else:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        group = dist.group.WORLD
        transport = ciera.nccl(group, device=0) if sys.argv[1] == "nccl" else as_transport(group)
    check_transport(transport)
    if sys.argv[1] != "mpi":
        dist.destroy_process_group()  # its threads must not outlive the interpreter
    print("contract kept", flush=True)


if __name__ == "__main__":
    main()
