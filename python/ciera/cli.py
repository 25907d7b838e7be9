"""The ``ciera`` command."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from ciera import __version__, info, replay
from ciera.buffers import DTYPES
from ciera.comm import CompressedAllgather
from ciera.devices import CPU, parse_device
from ciera.errors import CieraError, LibraryError
from ciera.spaces import space_of
from ciera.text import columns, shown
from ciera.trace import Trace, TraceError, load_trace
from ciera.transports import as_transport, loopback
from ciera.transports.nccl import nccl, nccl_unique_id

MODES = ("off", "exponent-only", "exponent-block", "exponent-delta", "word-delta")
EFFORTS = ("default", "high")
CODERS = ("rans", "raw")


@contextlib.contextmanager
def _shell_statuses() -> Iterator[None]:
    """Ends by Ctrl-C and by a closed pipe as a shell knows them; 1 is for mismatches only."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered must not fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


class _Cli(click.Group):
    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with _shell_statuses():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _shell_statuses():
            return super().invoke(ctx)


@click.group(cls=_Cli, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ciera")
def cli() -> None:
    """CIERA: a stateful, lossless all-gather for sharded training."""


class BadInput(click.ClickException):
    """Input that cannot be replayed."""

    exit_code = 2


def bad_input(message: str) -> click.ClickException:
    """One line on stderr and exit code 2."""
    return BadInput(shown(message))


class Failed(click.ClickException):
    """A replay that broke off."""

    exit_code = 3


@cli.command("info")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info_command(as_json: bool) -> None:
    """Versions, and which backends, coders and transports are available, or why not."""
    collected = info.collect()
    if as_json:
        click.echo(json.dumps(collected, indent=2))
        return
    rows = [["what", "name", "available", "detail"]]
    rows += [["version", name, "", version] for name, version in collected["versions"].items()]
    for group in ("backends", "coders", "transports"):
        for name, entry in collected[group].items():
            rows.append(
                [group[:-1], name, "yes" if entry["available"] else "no", shown(entry["detail"])]
            )
    click.echo("\n".join(columns(rows, right=False)))


@cli.command("replay")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--world-size", type=click.IntRange(1, 1024), help="Ranks [4; with mpi: mpirun's].")
@click.option(
    "--reuse",
    "modes",
    multiple=True,
    default=("exponent-block",),
    show_default=True,
    type=click.Choice([*MODES, "all"]),
    help="Reuse mode; several times or 'all' to compare.",
)
@click.option("--coder", type=click.Choice(CODERS), default="rans", show_default=True)
@click.option(
    "--effort",
    type=click.Choice(EFFORTS),
    default="default",
    show_default=True,
    help="Of the delta modes: high is smaller and slower.",
)
@click.option("--block-size", type=int, default=512, show_default=True, help="Values in a block.")
@click.option(
    "--transport",
    type=click.Choice(["loopback", "mpi", "nccl"]),
    default="loopback",
    show_default=True,
    help="nccl: ranks from RANK, WORLD_SIZE and MASTER_ADDR (torch) or mpirun (mpi4py).",
)
@click.option(
    "--device", default="cpu", show_default=True, help="cpu, cuda (LOCAL_RANK's) or cuda:N."
)
@click.option("--dtype", type=click.Choice(DTYPES), default="bf16", show_default=True)
@click.option("--steps", type=click.IntRange(1), help="Replay only the first steps.")
@click.option("--json", "json_path", help="Write results as JSON to a file, - for stdout.")
def replay_command(
    trace: Path,
    world_size: int | None,
    modes: tuple[str, ...],
    coder: str,
    effort: str,
    block_size: int,
    transport: str,
    device: str,
    dtype: str,
    steps: int | None,
    json_path: str | None,
) -> None:
    """Gather a trace's shards step after step and compare every value.

    TRACE is an .npz of uint16 (uint32 with --dtype fp32) arrays of shape (steps, values): row 0 the
    bit patterns of the first step, row t the XOR of steps t and t - 1. Exit code 1 on a mismatch, 2
    on bad input, 3 when the replay fails.

    Example: ciera replay tests/data/sample_trace.npz --reuse all
    """
    if block_size % 8 or not 8 <= block_size <= 65536:
        raise bad_input(f"--block-size {block_size}: give a multiple of 8 from 8 to 65536")
    wanted = MODES if "all" in modes else tuple(dict.fromkeys(modes))
    device = _usable(device)
    try:
        loaded = load_trace(trace, dtype=dtype, steps=steps)
    except TraceError as error:
        raise bad_input(str(error)) from error
    group = _group(transport, world_size, device)
    results = {}
    ticks = len(wanted) * sum(len(words) for words in loaded.shards.values())
    watched = group.leads and sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=not watched) as progress:
        task = progress.add_task("replay", total=ticks)
        for mode in wanted:
            options = replay.ReplayOptions(
                reuse=mode,
                coder=coder,
                block_size=block_size,
                dtype=dtype,
                device=device,
                effort=effort,
            )
            try:
                results[mode] = group.run(loaded, options, lambda: progress.advance(task))
            except (CieraError, MemoryError) as error:
                raise Failed(shown(str(error)) or "not enough memory") from error
    if group.leads:
        _report(results, group.world_size, json_path)
    if any(replay.total(one).mismatches for one in results.values()):
        sys.exit(1)


class _Loopback:
    leads = True

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def run(
        self, trace: Trace, options: replay.ReplayOptions, advance: Callable[[], None]
    ) -> replay.Results:
        return replay.replay_loopback(loopback(self.world_size), trace, options, advance)


class _Mpi:
    def __init__(self) -> None:
        from mpi4py import MPI

        self._comm = MPI.COMM_WORLD
        self.world_size: int = self._comm.size
        self.leads: bool = self._comm.rank == 0

    def run(
        self, trace: Trace, options: replay.ReplayOptions, advance: Callable[[], None]
    ) -> replay.Results:
        own = replay.replay_rank(as_transport(self._comm), trace, options, advance)
        return replay.merge_ranks(self._comm.allgather(own))


class _Nccl:
    def __init__(self, device: str) -> None:
        self._transport = _nccl_transport(device)
        self.world_size: int = self._transport.world_size
        self.leads: bool = self._transport.rank == 0

    def run(
        self, trace: Trace, options: replay.ReplayOptions, advance: Callable[[], None]
    ) -> replay.Results:
        own = replay.replay_rank(self._transport, trace, options, advance)
        return replay.merge_ranks(replay.exchange(self._transport, own))


def _nccl_transport(device: str) -> Any:
    index = parse_device(device).index
    stated = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")]
    if all(stated) and importlib.util.find_spec("torch") is not None:
        rank, world, host = int(stated[0] or 0), int(stated[1] or 0), str(stated[2])
        return nccl(unique_id=_id_over_store(rank, world, host), rank=rank, world_size=world,
                    device=index)  # fmt: skip
    available, why = info.collect()["transports"]["mpi"].values()
    if not available:
        raise LibraryError(
            f"ranks are found by RANK, WORLD_SIZE and MASTER_ADDR with torch, or by mpi4py: {why}"
        )
    from mpi4py import MPI

    return nccl(MPI.COMM_WORLD, device=index)


def _id_over_store(rank: int, world_size: int, host: str) -> bytes:
    """Rank 0's unique id, or its error on every rank."""
    dist: Any = importlib.import_module("torch.distributed")
    port = int(os.environ.get("MASTER_PORT", "29500"))
    store = dist.TCPStore(host, port, world_size, rank == 0)
    if rank == 0:
        try:
            store.set("ciera", "+" + nccl_unique_id().hex())
        except CieraError as error:
            store.set("ciera", f"-{error}")
    answer = bytes(store.get("ciera")).decode()
    # Rank 0 serves: it may go only when all have the answer.
    store.set(f"ciera/{rank}", "read")
    for peer in range(world_size if rank == 0 else 0):
        store.get(f"ciera/{peer}")
    if answer[:1] != "+":
        raise LibraryError(f"rank 0: {answer[1:]}")
    return bytes.fromhex(answer[1:])


def _usable(device: str) -> str:
    """The device with its number, found to work before anything is read."""
    local = os.environ.get("LOCAL_RANK", "")
    try:
        # A launcher's ranks of one host: each its own GPU.
        place = parse_device(f"cuda:{local}" if device == "cuda" and local.isdigit() else device)
        if place != CPU:
            CompressedAllgather(loopback(1)[0], device=str(place)).close()
            space_of(str(place))
        return str(place)
    except CieraError as error:
        raise bad_input(f"--device {device}: {error}") from error


def _group(transport: str, world_size: int | None, device: str) -> _Loopback | _Mpi | _Nccl:
    if transport == "loopback":
        return _Loopback(world_size or 4)
    group: _Mpi | _Nccl
    if transport == "nccl":
        if parse_device(device) == CPU:
            raise bad_input("--transport nccl moves GPU memory; give --device cuda")
        try:
            group = _Nccl(device)
        except (CieraError, RuntimeError, ValueError) as error:
            raise bad_input(f"--transport nccl: {error}") from error
    else:
        available, why = info.collect()["transports"]["mpi"].values()
        if not available:
            raise bad_input(f"--transport mpi: {why}")
        group = _Mpi()
    if world_size not in (None, group.world_size):
        raise bad_input(f"--world-size {world_size}, but {group.world_size} ranks were started")
    return group


def _report(results: dict[str, replay.Results], world_size: int, json_path: str | None) -> None:
    payload: Any = {mode: replay.to_json(one) for mode, one in results.items()}
    if len(payload) == 1:
        (payload,) = payload.values()
    else:
        payload = {"modes": payload}
    if json_path == "-":
        click.echo(json.dumps(payload, indent=2))
        return
    if json_path is not None:
        try:
            Path(json_path).write_text(json.dumps(payload, indent=2) + "\n")
        except OSError as error:
            raise bad_input(f"--json {json_path}: {error.strerror}") from error
    _print_table(results, world_size)


def _phase_row(label: str, phase: replay.Phase) -> list[str]:
    numbers = phase.to_json()
    changed = replay.ratio(100 * phase.changed_blocks, phase.blocks)
    return [
        label,
        f"{phase.steps}",
        f"{phase.raw_bytes:,}",
        f"{phase.wire_bytes:,}",
        f"{numbers['wire_ratio']:.3f}",
        f"{changed:.1f} %" if phase.blocks else "-",
        f"{numbers['encode_gbps']:.2f}" if phase.blocks else "-",
        f"{numbers['decode_gbps']:.2f}" if phase.blocks and phase.decoded_bytes else "-",
    ]


def _print_table(results: dict[str, replay.Results], world_size: int) -> None:
    """Fits 80 columns up to 99 GB a row; a shard's name stands above its numbers."""
    click.echo(f"{world_size} ranks; bytes summed over ranks, headers included")
    rows = [["frames", "steps", "raw bytes", "wire bytes", "wire\nratio", "blocks\nchanged",
             "encode\nGB/s", "decode\nGB/s"]]  # fmt: skip
    titles: dict[int, str] = {}  # lines to print before a row
    for mode, one in results.items():
        named = [(f"shard {shown(name)}", result) for name, result in one.items()]
        for i, (title, result) in enumerate([*named, ("all shards", replay.total(one))]):
            heading = f"\nreuse {mode}\n" if i == 0 else ""
            wrong = f": {result.mismatches:,} values differ" if result.mismatches else ""
            titles[len(rows)] = f"{heading}{title}{wrong}"
            for label, phase in (("key", result.key_frame), ("steady", result.steady)):
                if phase.steps:
                    rows.append(_phase_row(label, phase))
    lines = columns(rows, right=True)
    for i, line in enumerate(lines):
        if i - 1 in titles:  # the head has two lines
            click.echo(titles[i - 1])
        click.echo(f"  {line}")
    wrong_values = sum(replay.total(one).mismatches for one in results.values())
    click.echo(
        "\nevery gathered value is bit for bit the original"
        if wrong_values == 0
        else f"\n{wrong_values:,} values differ from the original"
    )


def main() -> None:
    """Entry point of the console script."""
    cli()


if __name__ == "__main__":
    main()
