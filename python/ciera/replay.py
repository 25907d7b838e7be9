"""Replays a trace through the all-gather and compares every gathered value."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ciera.comm import CompressedAllgather
from ciera.spaces import Space, space_of
from ciera.trace import Trace

_COUNTERS = (
    "raw_bytes",
    "wire_bytes",
    "encode_ns",
    "decode_ns",
    "blocks",
    "changed_blocks",
    "values",
)


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """How to gather; see CompressedAllgather."""

    reuse: str
    coder: str = "rans"
    block_size: int = 512
    dtype: str = "bf16"
    device: str = "cpu"
    effort: str = "default"


@dataclass
class Phase:
    """Counters of some steps, summed over ranks."""

    steps: int = 0
    values: int = 0
    raw_bytes: int = 0
    wire_bytes: int = 0
    decoded_bytes: int = 0
    encode_ns: int = 0
    decode_ns: int = 0
    blocks: int = 0
    changed_blocks: int = 0

    def add(self, other: Phase, *, same_steps: bool) -> None:
        """Adds counters; ``same_steps``: of another rank or shard for the same steps."""
        steps = max(self.steps, other.steps) if same_steps else self.steps + other.steps
        for name, number in asdict(other).items():
            setattr(self, name, getattr(self, name) + number)
        self.steps = steps

    def to_json(self) -> dict[str, float]:
        """The published form: bytes are summed over ranks, GB/s is a rank's mean while it codes."""
        return {
            "steps": self.steps,
            "raw_bytes": self.raw_bytes,
            "wire_bytes": self.wire_bytes,
            "wire_ratio": ratio(self.raw_bytes, self.wire_bytes),
            "encode_gbps": ratio(self.raw_bytes, self.encode_ns) if self.blocks else 0.0,
            "decode_gbps": ratio(self.decoded_bytes, self.decode_ns) if self.blocks else 0.0,
        }


@dataclass
class ShardResult:
    """What one shard showed: ``key_frame`` its first step (no history), ``steady`` the others."""

    mismatches: int = 0
    key_frame: Phase = field(default_factory=Phase)
    steady: Phase = field(default_factory=Phase)

    def add(self, other: ShardResult) -> None:
        """Adds another rank's, or another shard's."""
        self.mismatches += other.mismatches
        self.key_frame.add(other.key_frame, same_steps=True)
        self.steady.add(other.steady, same_steps=True)

    def to_json(self) -> dict[str, Any]:
        """As in the command's JSON."""
        return {
            "mismatches": self.mismatches,
            "key_frame": self.key_frame.to_json(),
            "steady": self.steady.to_json(),
        }


Results = dict[str, ShardResult]


def ratio(a: int, b: int) -> float:
    """a / b, 0 when b is."""
    return a / b if b else 0.0


def bounds(values: int, rank: int, world_size: int) -> tuple[int, int]:
    """The contiguous part of rank ``rank``; the first ranks are one longer if it must be."""
    share, rest = divmod(values, world_size)
    start = rank * share + min(rank, rest)
    return start, start + share + (1 if rank < rest else 0)


def replay_rank(
    transport: Any, trace: Trace, options: ReplayOptions, advance: Callable[[], None]
) -> Results:
    """One rank's part: gathers every shard step after step. Collective."""
    results = {name: ShardResult() for name in trace.shards}
    space = space_of(options.device)
    with (
        space.current(),
        CompressedAllgather(
            transport,
            reuse=options.reuse,
            coder=options.coder,
            block_size=options.block_size,
            device=options.device,
            effort=options.effort,
            plain_below_bytes=0,  # a replay shows the mode, also on small shards
        ) as comm,
    ):
        for step in range(trace.steps):
            for name, words in trace.shards.items():
                if step < len(words):
                    dtype, result = options.dtype, results[name]
                    _replay_step(comm, space, name, words[step], step, dtype, result)
                    advance()
    return results


def _replay_step(
    comm: CompressedAllgather,
    space: Space,
    name: str,
    words: Any,
    step: int,
    dtype: str,
    result: ShardResult,
) -> None:
    start, end = bounds(len(words), comm.rank, comm.world_size)
    there = space.put(words)
    before = comm.stats(name)
    gathered = comm.allgather(name, there[start:end], dtype=dtype)
    after = comm.stats(name)
    # As bits: a NaN must be the same NaN.
    result.mismatches += space.differences(gathered, there)
    phase = Phase(steps=1, decoded_bytes=words.nbytes - words[start:end].nbytes)
    for counter in _COUNTERS:
        setattr(phase, counter, after[counter] - before.get(counter, 0))
    target = result.key_frame if step == 0 else result.steady
    target.add(phase, same_steps=False)


def replay_loopback(
    transports: list[Any], trace: Trace, options: ReplayOptions, advance: Callable[[], None]
) -> Results:
    """All ranks as threads of this process."""
    results: list[Results | None] = [None] * len(transports)

    def body(rank: int) -> None:
        tick = advance if rank == 0 else lambda: None
        try:
            results[rank] = replay_rank(transports[rank], trace, options, tick)
        except BaseException as error:  # whatever it is, the others must not wait for this rank
            transports[rank].abort(str(error))
            raise

    # Not Thread.join: interrupted, it takes a running thread for ended (Python before 3.13), which
    # would outlive the interpreter.
    with ThreadPoolExecutor(len(transports)) as ranks:
        bodies = [ranks.submit(body, rank) for rank in range(len(transports))]
        try:
            failures = [error for one in as_completed(bodies) if (error := one.exception())]
        except BaseException:
            transports[0].abort("interrupted")
            raise
    if failures:
        raise failures[0]
    return merge_ranks([one for one in results if one is not None])


def merge_ranks(ranks: list[Results]) -> Results:
    """Sums the ranks' results."""
    merged = {name: ShardResult() for name in ranks[0]}
    for one in ranks:
        for name, result in one.items():
            merged[name].add(result)
    return merged


def exchange(transport: Any, own: Results) -> list[Results]:
    """Every rank's results, over the transport itself. Collective."""
    text = pickle.dumps(own)
    lengths = np.zeros(transport.world_size, np.int64)
    transport.allgather(np.array([len(text)], np.int64), lengths)
    most = int(lengths.max())
    texts = np.zeros(most * len(lengths), np.uint8)
    transport.allgather(text.ljust(most, b"\0"), texts)
    return [
        pickle.loads(texts[rank * most : rank * most + int(length)].tobytes())
        for rank, length in enumerate(lengths)
    ]


def total(results: Results) -> ShardResult:
    """All shards together."""
    everything = ShardResult()
    for result in results.values():
        everything.add(result)
    return everything


def to_json(results: Results) -> dict[str, Any]:
    """The command's JSON for one mode."""
    everything = total(results)
    return {
        "total": {"bitwise_equal": everything.mismatches == 0, **everything.to_json()},
        "shards": {name: result.to_json() for name, result in results.items()},
    }
