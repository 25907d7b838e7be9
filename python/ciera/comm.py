"""The stateful, lossless all-gather."""

from __future__ import annotations

import atexit
import contextlib
import operator
import time
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

from ciera import _native, nvcomp
from ciera.buffers import DTYPES, Maker, View, view_of, wire_dtype
from ciera.cuda_arrays import common_stream, stream_handle
from ciera.devices import CPU, Device, parse_device
from ciera.errors import ArgumentError, CieraError
from ciera.gathered import GatheredBuffer, element_of, lengths
from ciera.transports import as_transport, seconds

ShardId = str | int
Version = str | int
_WHOLE: Any = object()  # the numel of a one-segment call: all of src


_EXIT_PATIENCE_S = 0.5  # for calls under way when the interpreter ends
_FAILURE_PATIENCE_S = 1.0  # when an error leaves a with block
_open: weakref.WeakSet[CompressedAllgather] = weakref.WeakSet()


def _leave_all() -> None:
    """No thread of ours may enter Python when its end has begun: calls under way are given up."""
    end = time.monotonic() + _EXIT_PATIENCE_S
    for comm in list(_open):
        with contextlib.suppress(CieraError, KeyboardInterrupt):
            comm._comm.leave(max(0.0, end - time.monotonic()))


atexit.register(_leave_all)


class _Finish(NamedTuple):
    """What makes the result of a complete call. Does not hold its source."""

    given: Any  # out, or None
    maker: Maker
    per_segment: bool
    device: Device
    sizes: dict[Any, list[int]]


def _size_key(named: list[tuple[ShardId, int]], per_segment: bool) -> Any:
    return (per_segment, *(shard_id for shard_id, _ in named))


def _finished(finish: _Finish, call: _native.Call, named: list[tuple[ShardId, int]]) -> Any:
    if finish.given is not None:
        return finish.given
    arrays = [finish.maker.array(part, call, finish.device) for part in call.outputs()]
    if finish.maker.in_torch_memory:
        finish.sizes[_size_key(named, finish.per_segment)] = [one.numel() for one in arrays]
    return arrays if finish.per_segment else arrays[0]


class Handle:
    """A call under way. Keep its arrays unchanged until ``wait`` has returned.

    Wait for every handle or close the communicator before the program ends: what is under way then
    is given up after half a second, and the peers get a TransportError.
    """

    def __init__(
        self, call: _native.Call, finish: _Finish, named: list[tuple[ShardId, int]], rank: int
    ) -> None:
        self._call = call
        self._finish: _Finish | None = finish
        self._named = named
        self._rank = rank
        self._out: Any = None

    def done(self) -> bool:
        """True when the call is complete, successfully or not. Never blocks."""
        return self._call.done()

    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until the call is complete and returns its result.

        Raises the call's error, or DeadlineError after ``timeout`` seconds (the call goes on then).
        """
        if timeout is not None:
            try:
                timeout = seconds(timeout)
            except ArgumentError as error:
                label = f"shard {_shown(self._named[0][0])}, rank {self._rank}"
                raise ArgumentError(f"{label}: {error}") from error
        self._call.wait(timeout)
        finish = self._finish
        if finish is not None:
            self._out = _finished(finish, self._call, self._named)
            self._finish = None
        return self._out

    @property
    def result(self) -> Any:
        """The gathered array(s); waits for them."""
        return self.wait()


class CompressedAllgather:
    """One rank's end of a group; the result of each call is bit for bit a plain all-gather's.

    ``transport``: from ``ciera.loopback`` or ``ciera.nccl``, an mpi4py communicator or a
    torch.distributed group.
    ``reuse``: "off", "exponent-only", "exponent-block", "exponent-delta" (these need state: 1 byte
    a remote value; the last also 1 byte an own value) or "word-delta" (a word each; also integers
    up to 64 bits). ``effort``: of the delta modes, "default" or
    "high" (smaller and slower). ``coder``: "rans", "raw" or, on a GPU with nvCOMP, "nvcomp-ans".
    ``check_versions``: compare although a version says that the shard is unchanged, and raise when
    it is not. ``check_buffers``: digest the buffers of ``buffer`` after each call, and raise when
    somebody wrote where nobody may before the next (slow). ``block_size``: values in a block, a
    multiple of 8 up to 65536.
    ``plain_below_bytes``: calls whose largest rank has fewer bytes are handed over to a plain
    all-gather; None: measured in the first call over NCCL, which takes some milliseconds, 0
    elsewhere (the property of that name tells).
    ``cache_budget_bytes``: bound of all reuse state of this rank; shards beyond it travel without
    state. ``threads``: codec threads, 0 = cores / ranks on this host. ``device``: where this rank's
    arrays lie and the codec runs: None or "cpu"; "cuda" (torch's current GPU where torch has one,
    else the first), "cuda:N", an int or a torch.device. All but ``threads``, ``check_versions``,
    ``check_buffers`` and the number of the GPU must be equal on all ranks: the first call checks.

    A transport belongs to one communicator at a time. Calls are collective and made from one thread
    at a time; a second thread gets ConcurrentCallError, and its peers wait for it until their
    deadline. An error in one rank's arguments raises on every rank and changes nothing. Ctrl-C in a
    call, in ``Handle.wait`` or ``close`` gives up what is under way: the peers get a
    TransportError, and only ``close`` remains. After a fork the child has to make its own.

    On a GPU a call uses its arrays after what is on the stream they are used on: torch's or CuPy's
    current one, the ``stream`` of ``__cuda_array_interface__``, or the argument ``stream`` (an
    address or a stream object). When a call or ``Handle.wait`` returns, the result is complete for
    every stream. Without ``out`` it is the library's memory, new for each call.
    """

    def __init__(
        self,
        transport: Any,
        *,
        reuse: str = "exponent-block",
        block_size: int = 512,
        coder: str = "rans",
        cache_budget_bytes: int | None = None,
        threads: int = 0,
        device: Any = None,
        effort: str = "default",
        check_versions: bool = False,
        check_buffers: bool = False,
        plain_below_bytes: int | None = None,
    ) -> None:
        for label, text in (("reuse", reuse), ("coder", coder), ("effort", effort)):
            if not isinstance(text, str):
                raise ArgumentError(f"{label}={text!r} is not possible; give a str")
        if coder == "nvcomp-ans":
            nvcomp.point_to_wheel()
        budget = cache_budget_bytes
        self._device = parse_device(device)
        self._comm = _native.Communicator(
            as_transport(transport),
            reuse=reuse,
            coder=coder,
            block_size=_integer("block_size", block_size, least=8, most=65536),
            cache_budget_bytes=None if budget is None else _integer("cache_budget_bytes", budget),
            threads=_integer("threads", threads, most=1024),
            backend="host" if self._device == CPU else "cuda",
            device=self._device.index or 0,
            effort=effort,
            check_versions=bool(check_versions),
            check_buffers=bool(check_buffers),
            plain_below_bytes=None
            if plain_below_bytes is None
            else _integer("plain_below_bytes", plain_below_bytes),
        )
        # Of torch results in host memory, in elements, by the shards of a call and per_segment.
        self._sizes: dict[Any, list[int]] = {}
        _open.add(self)

    @property
    def device(self) -> str:
        """Where arrays lie and the codec runs: "cpu" or "cuda:N"."""
        return str(self._device)

    @property
    def rank(self) -> int:
        """This rank's index."""
        return self._comm.rank

    @property
    def plain_below_bytes(self) -> int | None:
        """From which bytes of the largest rank on calls are compressed; None before measuring."""
        return self._comm.plain_below_bytes

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._comm.world_size

    def allgather(
        self,
        shard_id: ShardId,
        shard: Any,
        *,
        out: Any = None,
        dtype: str | None = None,
        stream: Any = None,
        version: Version | None = None,
    ) -> Any:
        """Gathers every rank's ``shard`` and returns them one after the other, rank-major.

        ``shard``: contiguous 1-D array on this communicator's device (numpy, torch, CuPy,
        ``__cuda_array_interface__``, DLPack, buffer protocol) of any length; lengths may differ
        between ranks. ``out``: array of the summed length and the same dtype, or
        None to get a new one of the type of ``shard``; ``shard`` may be this rank's slot of it.
        A buffer of ``buffer`` serves as ``out`` and is returned as it is.
        ``dtype`` ("bf16", "fp16", "fp32") says what the bits are where the array cannot.
        ``version``: a token of your own for the contents of ``shard``; equal to that of the last
        successful call means unchanged since, and where same frames are possible (word-delta; the
        exponent modes with a ``buffer`` on every rank) nothing is even compared (see
        ``check_versions``). Blocks until complete.
        """
        return self._gather(
            [(shard_id, _WHOLE)], shard, out, dtype, stream, False, False, [version]
        ).wait()

    def allgather_async(
        self,
        shard_id: ShardId,
        shard: Any,
        *,
        out: Any = None,
        dtype: str | None = None,
        stream: Any = None,
        version: Version | None = None,
    ) -> Handle:
        """As ``allgather``, returning at once. Calls run in the order they were started."""
        return self._gather([(shard_id, _WHOLE)], shard, out, dtype, stream, False, True, [version])

    def allgather_segments(
        self,
        segments: Sequence[tuple[ShardId, int]],
        src: Any,
        *,
        out: Any = None,
        dtype: str | None = None,
        per_segment: bool = False,
        async_op: bool = False,
        stream: Any = None,
        versions: Sequence[Version | None] = (),
    ) -> Any:
        """One collective over a flat buffer of several shards, each with its own state.

        ``segments``: (shard_id, numel) in the order they lie in ``src``. The result is the flat
        rank-major buffer of a plain all-gather, or with ``per_segment`` a list of one rank-major
        array a segment (``out`` then is such a list). With ``async_op`` a Handle is returned.
        ``versions``: none, or one a segment (see ``allgather``).
        """
        handle = self._gather(segments, src, out, dtype, stream, per_segment, async_op, versions)
        return handle if async_op else handle.wait()

    def _gather(
        self,
        segments: Sequence[tuple[ShardId, int]],
        src: Any,
        out: Any,
        dtype: str | None,
        stream: Any,
        per_segment: bool,
        async_op: bool,
        versions: Sequence[Version | None],
    ) -> Handle:
        named: list[tuple[ShardId, int]] = []
        try:
            named = _pairs(segments)
            stated = stream_handle(stream, self._device)
            view = view_of(src, device=self._device, dtype=dtype, stream=stated)
            named = [(one, view.numel if numel is _WHOLE else numel) for one, numel in named]
            tokens = _versions(versions)
            made = None if out is not None else self._torch_out(named, view, per_segment)
            given = made if out is None else out
            outs = [] if given is None else self._out_views(given, view, dtype, stated, per_segment)
            used = [one.gpu.stream for one in (view, *outs) if one.gpu is not None]
            handle = common_stream(used) if stated is None else stated
        except Exception as error:
            self._reject(named, error)
            raise
        try:
            call = self._comm.gather(
                named,
                view.dtype,
                "" if view.dtype in DTYPES else view.name,
                view.data,
                None if given is None else [one.data for one in outs],
                per_segment,
                handle,
                [one.keep for one in (view, *outs)],
                tokens,
                async_op=async_op,
            )
        except TypeError as error:  # what native code does not take: it has not heard of the call
            self._reject(named, ArgumentError(str(error).splitlines()[0]))
            raise
        finish = _Finish(given, view.maker, per_segment, self._device, self._sizes)
        return Handle(call, finish, named, self.rank)

    def _reject(self, named: list[tuple[ShardId, int]], error: Exception) -> None:
        """Tells the peers, who are in this call; raises an ``error`` of ours with its place."""
        label = f"shard {_shown(named[0][0])}, " if named else ""
        message = f"{label}rank {self.rank}: {error}"
        self._comm.reject([(one, 0) for one, _ in named], message)
        if isinstance(error, CieraError):
            raise type(error)(message) from error

    def _torch_out(
        self, named: list[tuple[ShardId, int]], view: View, per_segment: bool
    ) -> Any | None:
        """Torch's own memory for a result whose size an earlier call has shown: it can be freed."""
        if not view.maker.in_torch_memory:
            return None
        sizes = self._sizes.get(_size_key(named, per_segment))
        if sizes is None:
            return None
        made = [view.maker.empty(size) for size in sizes]
        return made if per_segment else made[0]

    def _out_views(
        self, out: Any, view: View, dtype: str | None, stream: int | None, per_segment: bool
    ) -> list[View]:
        if per_segment and not isinstance(out, list | tuple):
            raise ArgumentError("with per_segment, out is a list of one array a segment")
        if stream is None and view.gpu is not None:
            stream = view.gpu.stream
        views = [
            view_of(one, device=self._device, dtype=dtype, writable=True, stream=stream)
            for one in (list(out) if per_segment else [out])
        ]
        for one in list(out) if per_segment else [out]:
            if isinstance(one, GatheredBuffer) and not one.belongs_to(self):
                raise ArgumentError("out is a buffer of another communicator")
        for one in views:
            if one.dtype != view.dtype or (dtype is None and one.name not in (view.name, "")):
                raise ArgumentError(f"out is {one.name} where the shard is {view.name}")
        return views

    def buffer(self, shard_id: ShardId, numel: Any = None, *, dtype: Any = None) -> GatheredBuffer:
        """The library's own gathered buffer of a shard: pass it as ``out``.

        In word-delta the peers' parts of it are the WordCache, so that nothing is copied after
        decoding and the shard is not in memory twice; its own part is the own reference unless the
        shard is gathered in place. In the exponent modes an unchanged shard costs a header once
        every rank has a buffer (in place: with an equal ``version``). A call with another ``out``
        is right too: it decodes here and copies.

        ``numel``: values of every rank, one int where they are alike, else one a rank.
        ``dtype``: "bf16", "fp16", "fp32", or a dtype of numpy or torch. Both may be left out for a
        shard that was gathered before; its buffer then begins with what was gathered last in
        word-delta, else with zeros. Asking again gives the same memory. It lasts until ``reset`` or
        ``close``, and as long as somebody holds it.

        Not collective: each rank may have a buffer or not. Waits for calls under way. Raises
        ArgumentError when ``numel`` or ``dtype`` are not those of the shard, here or in its first
        call, and OutOfMemoryError; nothing has changed then.
        """
        label = f"shard {_shown(shard_id)}, rank {self.rank}"
        try:
            plain = _shard_id(shard_id)
            element = None if dtype is None else element_of(dtype)
            wire = None if element is None else wire_dtype(*element, None)
            numels = lengths(numel, self.world_size)
            if numels is not None and wire is None:
                raise ArgumentError("numel needs a dtype; give both, or none for a known shard")
        except ArgumentError as error:
            raise ArgumentError(f"{label}: {error}") from error
        native = self._comm.buffer(plain, None if numels is None else wire, numels or [])
        if element is None:
            element = element_of(native.dtype)
        elif native.dtype != wire:
            raise ArgumentError(f"{label}: the shard is {native.dtype}, not {wire}; ask for that")
        return GatheredBuffer(native, self, plain, element, self._device)

    def reset(self, shard_id: ShardId | None = None) -> None:
        """Forgets one shard, or all. Every rank must do it between the same two calls.

        Their buffers are let go: they stay memory of who holds them.
        """
        self._comm.reset(None if shard_id is None else _shard_id(shard_id))
        self._sizes = {}  # a new one: calls under way write to the old one

    def stats(self, shard_id: ShardId | None = None) -> dict[str, int]:
        """Counters since creation or reset; bytes are what this rank sent, rows included."""
        return self._comm.stats(None if shard_id is None else _shard_id(shard_id))

    def memory(self) -> dict[str, int]:
        """Bytes held: each cache (docs/state.md), ``buffers``, the arenas, and their total."""
        return self._comm.memory()

    def close(self) -> None:
        """Waits for calls under way and frees everything. Idempotent, not collective."""
        self._comm.close()
        _open.discard(self)

    def __enter__(self) -> CompressedAllgather:
        """Leaving waits for calls under way; with an error a second at most, then it gives them up.

        Peers would wait in vain for what this rank no longer calls.
        """
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        self._comm.close(_FAILURE_PATIENCE_S if isinstance(error, Exception) else 0.0)
        _open.discard(self)


def _shown(shard_id: ShardId) -> str:
    text = repr(shard_id)
    return text if len(text) <= 120 else text[:117] + "..."


def _integer(label: str, number: Any, *, least: int = 0, most: int = 2**64 - 1) -> int:
    """Any integer type (numpy's too) within bounds; a bool is none."""
    try:
        plain = operator.index(number)
    except TypeError:
        plain = least - 1
    if isinstance(number, bool) or not least <= plain <= most:
        raise ArgumentError(f"{label}={number!r} is not possible; give an int, {least} to {most}")
    return plain


def _shard_id(shard_id: Any) -> ShardId:
    if isinstance(shard_id, str):
        try:
            shard_id.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(f"shard_id {shard_id!r} is no valid UTF-8 ({error})") from error
        return shard_id
    try:
        plain = operator.index(shard_id)
    except TypeError:
        plain = None
    if plain is None or isinstance(shard_id, bool):
        raise ArgumentError(f"a shard_id is a str or an int, not {type(shard_id).__name__}")
    if not -(2**63) <= plain < 2**63:
        raise ArgumentError("an int shard_id must fit 64 bits; use a str")
    return plain


def _version(version: Any) -> Version | None:
    if isinstance(version, str):
        try:
            version.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(f"version {version!r} is no valid UTF-8 ({error})") from error
    if version is None or isinstance(version, str):
        return version
    try:
        plain = operator.index(version)
    except TypeError:
        plain = None
    if plain is None or isinstance(version, bool) or not -(2**63) <= plain < 2**63:
        raise ArgumentError(f"a version is a str, an int of 64 bits or None, not {version!r}")
    return plain


def _versions(versions: Any) -> list[Version | None]:
    if not isinstance(versions, list | tuple):
        raise ArgumentError(f"versions are a list or a tuple, one a segment, not {versions!r}")
    return [_version(one) for one in versions]


def _pairs(segments: Any) -> list[tuple[ShardId, int]]:
    try:
        pairs = [(shard_id, numel) for shard_id, numel in segments]
    except (TypeError, ValueError) as error:
        raise ArgumentError("segments must be a sequence of (shard_id, numel) pairs") from error
    return [
        (_shard_id(shard_id), numel if numel is _WHOLE else _integer("numel", numel))
        for shard_id, numel in pairs
    ]
