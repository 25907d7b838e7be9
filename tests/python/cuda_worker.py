"""One rank of the all-gather of GPU arrays over real NCCL, for test_cuda.py under one_gpu.sh."""

from __future__ import annotations

import sys
from typing import Any

import ciera
import torch
import torch.distributed as dist


def shards_of(world: int, step: int, kind: Any) -> list[Any]:
    """Uneven shards that move a little from step to step; alike on all ranks."""
    made = []
    for rank in range(world):
        generator = torch.Generator().manual_seed(rank)
        weights = torch.randn(50_001 + 7 * rank, generator=generator) * 0.02
        weights[::97] += step * 1e-3
        made.append(weights.to(kind).cuda())
    return made


def same(gathered: Any, shards: list[Any]) -> bool:
    """Bit for bit."""
    return torch.equal(gathered.view(torch.uint8), torch.cat(shards).view(torch.uint8))


def check(transport: Any) -> None:
    """Every mode and float type; results of the library's memory, out, in place, async, errors."""
    rank, world = transport.rank, transport.world_size
    for mode in ("off", "exponent-only", "exponent-block"):
        with ciera.CompressedAllgather(transport, reuse=mode, device="cuda") as comm:
            for kind in (torch.bfloat16, torch.float16, torch.float32, torch.int64):
                for step in range(3):
                    shards = shards_of(world, step, kind)
                    name = str(kind)
                    assert same(comm.allgather(name, shards[rank]), shards), (mode, name, step)
                    out = torch.empty_like(torch.cat(shards))
                    start = sum(one.numel() for one in shards[:rank])
                    own = out[start : start + shards[rank].numel()]
                    own.copy_(shards[rank])
                    assert comm.allgather_async(name, own, out=out).wait() is out
                    assert same(out, shards), (mode, name, step)
            wrong = torch.zeros(8) if rank == 0 else torch.zeros(8, device="cuda")
            try:
                comm.allgather("wrong on rank 0", wrong)
            except (ciera.WrongDeviceError, ciera.PeerFailedError):
                continue
            raise AssertionError("an array of another device went unnoticed")


def main() -> None:
    """Finds its peers over gloo."""
    dist.init_process_group("gloo")
    check(ciera.nccl(dist.group.WORLD, device=0))
    dist.destroy_process_group()  # its threads must not outlive the interpreter
    print("gathered", flush=True)


if __name__ == "__main__":
    sys.exit(main())
