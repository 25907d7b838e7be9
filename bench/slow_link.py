"""One rank of bench/slow_link.sh: CIERA against a plain all-gather over gloo, in one run.

Also runs by itself on hosts that are joined by a slow link (GLOO_SOCKET_IFNAME names it):
torchrun ... bench/slow_link.py TRACE.npz. Every iteration moves each rank's shard by one recorded
training step (untimed), then times `dist.all_gather_into_tensor` and CIERA over the `torch`
transport on the same words, in turn; who goes first alternates. Both results are compared with what
every rank has, bit for bit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ciera
import numpy as np
import torch
import torch.distributed as dist
from ciera.trace import TraceError, load_trace

BF16_BYTES = 2
PROBE_S = 0.5
# torch 2.13 renamed it and warns about the old name.
all_gather_into_tensor = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
Row = dict[str, Any]


def byte_count(text: str) -> int:
    """Bytes with an optional K, M or G (powers of 1024)."""
    match = re.fullmatch(r"([1-9][0-9]*)([KMG]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give bytes such as 65536, 64K or 16M")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def mode_of(text: str) -> tuple[str, str]:
    """MODE or MODE:EFFORT."""
    reuse, _, effort = text.partition(":")
    return reuse, effort or "default"


def parse() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="slow_link", description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE.npz")
    parser.add_argument("--shard", default="expert_ffn", help="of the traces (%(default)s)")
    parser.add_argument("-b", "--min-bytes", type=byte_count, default="16M", help="gathered bytes")
    parser.add_argument("-e", "--max-bytes", type=byte_count, default="256M")
    parser.add_argument("-f", "--factor", type=int, default=4, help="between sizes (%(default)s)")
    parser.add_argument("-n", "--iters", type=int, default=5)
    parser.add_argument("-w", "--warmup", type=int, default=2, help="the first has a key frame")
    parser.add_argument("--mode", dest="modes", action="append", type=mode_of,
                        metavar="MODE[:EFFORT]",
                        help="repeatable; by default word-delta and word-delta:high")  # fmt: skip
    parser.add_argument("--threads", type=int, default=0, help="codec threads of a rank")
    parser.add_argument("--timeout", type=float, default=120, help="seconds a rank waits for peers")
    parser.add_argument("--link-gbit", type=float, help="what the link was shaped to")
    parser.add_argument("--json", type=Path, help="append a JSON line for each row")
    parser.add_argument("--check", action="store_true", help="check the command line and no more")
    options = parser.parse_args()
    if min(options.factor - 1, options.iters, options.warmup) < 1:
        parser.error("--factor must be 2 or more, --iters and --warmup 1 or more")
    if options.max_bytes < options.min_bytes:
        parser.error("--max-bytes must not be less than --min-bytes")
    options.modes = options.modes or [("word-delta", "default"), ("word-delta", "high")]
    return options


class Steps:
    """What each rank has at each step: tiles of a recorded shard, each from another offset.

    The recorded steps are walked forth and back, so that each is one training step from the last.
    """

    def __init__(self, words: Any, numel: int) -> None:
        self._words = np.concatenate([words, words], axis=1)  # so that a tile is one slice
        self._period = words.shape[1]
        self._last = len(words) - 1
        self._numel = numel

    def _tiles(self, rank: int, step: int) -> Any:
        at = step % (2 * self._last)
        words = self._words[min(at, 2 * self._last - at)]
        for tile, start in enumerate(range(0, self._numel, self._period)):
            offset = (rank * 40_503 + tile * 10_007) % self._period
            count = min(self._period, self._numel - start)
            yield slice(start, start + count), words[offset : offset + count]

    def fill(self, shard: Any, rank: int, step: int) -> None:
        """Makes `shard` what `rank` has."""
        for place, words in self._tiles(rank, step):
            shard[place] = words

    def wrong(self, gathered: Any, world_size: int, step: int) -> int:
        """How many of the gathered words are not what their owner has."""
        return sum(
            int(np.count_nonzero(gathered[rank * self._numel :][place] != words))
            for rank in range(world_size)
            for place, words in self._tiles(rank, step)
        )


def reduce(numbers: list[float], how: Any) -> list[float]:
    """Over all ranks."""
    tensor = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(tensor, op=how)
    return [float(one) for one in tensor]


@dataclass
class Times:
    """Milliseconds, of each iteration the slowest rank's."""

    plain: list[float]
    ciera: list[float]


class Bench:
    """One rank's buffers of one size, and what is timed on them."""

    def __init__(self, steps: Steps, numel: int) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.steps = steps
        self.shard = torch.empty(numel, dtype=torch.bfloat16)
        self.out = torch.empty(numel * self.world_size, dtype=torch.bfloat16)
        self.wrong = 0

    def timed(self, call: Callable[[], Any], step: int) -> float:
        """Milliseconds of a call that fills `out`; its result is checked."""
        self.out.view(torch.int16).fill_(0x5A5A)  # no bits of the call before may pass for its own
        dist.barrier()
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        gathered = self.out.view(torch.int16).numpy().view(np.uint16)
        self.wrong += self.steps.wrong(gathered, self.world_size, step)
        return 1e3 * took

    def run(self, comm: Any, warmup: int, iters: int) -> Times:
        """Both all-gathers, step after step."""
        times = Times([], [])
        words = self.shard.view(torch.int16).numpy().view(np.uint16)
        calls: dict[str, Callable[[], Any]] = {
            "plain": lambda: all_gather_into_tensor(self.out, self.shard),
            "ciera": lambda: comm.allgather("shard", self.shard, out=self.out),
        }
        for step in range(warmup + iters):
            self.steps.fill(words, self.rank, step)
            order = list(calls) if step % 2 == 0 else list(calls)[::-1]
            took = {name: self.timed(calls[name], step) for name in order}
            if step >= warmup:
                times.plain.append(took["plain"])
                times.ciera.append(took["ciera"])
            if step == warmup - 1:
                self.before = comm.stats("shard")
        self.after = comm.stats("shard")
        times.plain = reduce(times.plain, dist.ReduceOp.MAX)
        times.ciera = reduce(times.ciera, dist.ReduceOp.MAX)
        return times

    def counted(self, name: str, how: Any, iters: int) -> float:
        """A counter's growth a timed call, over all ranks."""
        return reduce([(self.after[name] - self.before[name]) / iters], how)[0]


def measure(options: argparse.Namespace, bench: Bench, mode: tuple[str, str]) -> Row:
    """One row of the table."""
    reuse, effort = mode
    group = dist.group.WORLD
    with ciera.CompressedAllgather(
        group, reuse=reuse, effort=effort, threads=options.threads
    ) as comm:
        times = bench.run(comm, options.warmup, options.iters)
    size = bench.out.nbytes
    plain, coded = float(np.median(times.plain)), float(np.median(times.ciera))
    slowest = {
        f"{name}_ms": bench.counted(f"{name}_ns", dist.ReduceOp.MAX, options.iters) / 1e6
        for name in ("encode", "exchange", "decode")
    }
    wire = bench.counted("wire_bytes", dist.ReduceOp.SUM, options.iters)
    return {
        "size": size,
        "reuse": reuse,
        "effort": effort,
        "plain_ms": plain,
        "plain_min_ms": min(times.plain),
        "plain_algbw": size / plain / 1e6,
        "ciera_ms": coded,
        "ciera_min_ms": min(times.ciera),
        "ciera_algbw": size / coded / 1e6,
        **slowest,
        "wire_bytes": wire,
        "wire_ratio": size / wire,
        "speed_up": plain / coded,
        "wrong": int(reduce([float(bench.wrong)], dist.ReduceOp.SUM)[0]),
        "iterations": asdict(times),
    }


HEAD = """\
#       size               mode     plain       min   algbw     CIERA       min   algbw    encode\
  exchange    decode    ratio speed-up   #wrong
#        (B)                         (ms)      (ms)  (GB/s)      (ms)      (ms)  (GB/s)      (ms)\
      (ms)      (ms)"""


def shown(row: Row) -> str:
    """A line of the table."""
    mode = row["reuse"] + ("" if row["effort"] == "default" else " " + row["effort"])
    return (
        f"{row['size']:12d} {mode:>18s} "
        f"{row['plain_ms']:9.2f} {row['plain_min_ms']:9.2f} {row['plain_algbw']:7.3f} "
        f"{row['ciera_ms']:9.2f} {row['ciera_min_ms']:9.2f} {row['ciera_algbw']:7.3f} "
        f"{row['encode_ms']:9.2f} {row['exchange_ms']:9.2f} {row['decode_ms']:9.2f} "
        f"{row['wire_ratio']:8.3f} {row['speed_up']:8.2f} {row['wrong']:8d}"
    )


def own_address() -> str:
    """This host's address on the interface that gloo uses."""
    rendezvous = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    with socket.create_connection(rendezvous) as probe:
        return str(probe.getsockname()[0])


def send_for(peer: str, seconds: float) -> None:
    """Sends as fast as it can, then hangs up."""
    address, _, port = peer.rpartition(" ")
    end = time.perf_counter() + seconds
    with socket.create_connection((address, int(port)), timeout=30) as link:
        while time.perf_counter() < end:
            link.sendall(bytes(1 << 18))


def probe_link() -> float:
    """Gbit/s of payload on one TCP connection from each rank to the next; the slowest rank's."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with socket.create_server((own_address(), 0)) as server:
        server.settimeout(30)
        peers: list[Any] = [None] * world_size
        dist.all_gather_object(peers, f"{server.getsockname()[0]} {server.getsockname()[1]}")
        sender = threading.Thread(target=send_for, args=(peers[(rank + 1) % world_size], PROBE_S))
        sender.start()
        link, _ = server.accept()
        buffer, received, start = bytearray(1 << 20), 0, time.perf_counter()
        with link:
            while count := link.recv_into(buffer):
                received += count
        rate = 8e-9 * received / (time.perf_counter() - start)
        sender.join()
    return reduce([rate], dist.ReduceOp.MIN)[0]


def describe(options: argparse.Namespace, probed: float) -> Row:
    """What the rows of this run have in common."""
    return {
        "ranks": dist.get_world_size(),
        "link_gbit": options.link_gbit,
        "probed_gbit": probed,
        "cores": len(os.sched_getaffinity(0)),
        "threads": options.threads,
        "load": os.getloadavg()[0],
        "iters": options.iters,
        "warmup_iters": options.warmup,
        "shard": options.shard,
        "torch": torch.__version__,
        "ciera": ciera.__version__,
    }


def headline(facts: Row) -> str:
    """The same for people."""
    asked = "" if facts["link_gbit"] is None else f", shaped to {facts['link_gbit']:g} Gbit/s"
    return (
        f"# slow_link: ciera {facts['ciera']}, torch {facts['torch']}, gloo; {facts['ranks']} ranks"
        f"{asked}, TCP payload probed {facts['probed_gbit']:.2f} Gbit/s a rank\n"
        f"# {facts['cores']} cores for all ranks of this host, codec threads "
        f"{facts['threads'] or 'cores / ranks'}, load {facts['load']:.2f}; bfloat16, shard "
        f"{facts['shard']}, {facts['iters']} iterations: median and least"
    )


def run(options: argparse.Namespace) -> int:
    """All rows; the number of wrong words."""
    probed = probe_link()
    facts, wrong = describe(options, probed), 0
    first = dist.get_rank() == 0

    def say(text: str) -> None:
        if first:
            print(text, flush=True)

    say(headline(facts))
    for trace in options.traces:
        words = load_trace(trace, dtype="bf16").shards[options.shard]
        say(f"# {trace.name}\n{HEAD}")
        size = options.min_bytes
        while size <= options.max_bytes:
            numel = max(1, size // (BF16_BYTES * dist.get_world_size()))
            for mode in options.modes:
                row = measure(options, Bench(Steps(words, numel), numel), mode)
                wrong += row["wrong"]
                say(shown(row))
                if first and options.json is not None:
                    with options.json.open("a") as out:
                        line = {"trace": trace.name, **facts, **row}
                        out.write(json.dumps(line, default=str) + "\n")
            size *= options.factor
    return wrong


def check_traces(options: argparse.Namespace) -> None:
    """Raises TraceError for what cannot be replayed, before any rank waits for another."""
    for path in options.traces:
        shards = load_trace(path, dtype="bf16").shards
        if options.shard not in shards:
            raise TraceError(f"{path}: no shard {options.shard!r}; it holds {', '.join(shards)}")
        if len(shards[options.shard]) < 2:
            raise TraceError(f"{path}: shard {options.shard!r} has one step, give two or more")


def main() -> int:
    """Exit status: 0, 1 when a word was wrong or the run failed, 2 for what was asked for."""
    options = parse()
    try:
        check_traces(options)
    except TraceError as error:
        print(f"slow_link: {error}", file=sys.stderr)
        return 2
    if options.check:
        return 0
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=options.timeout))
    try:
        return 1 if run(options) else 0
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
