"""Trace files: consecutive training steps of several shards (npz of XOR differences)."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_WORDS: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype("<u2"),
    "fp16": np.dtype("<u2"),
    "fp32": np.dtype("<u4"),
}


class TraceError(ValueError):
    """The file is no trace; the message is one line that says why."""


@dataclass(frozen=True)
class Trace:
    """Bit patterns by shard: arrays of shape (steps, values), uint16 or uint32."""

    shards: dict[str, npt.NDArray[Any]]

    @property
    def steps(self) -> int:
        """Steps of the longest shard."""
        return max(len(words) for words in self.shards.values())


def load_trace(path: Path, *, dtype: str, steps: int | None = None) -> Trace:
    """Reads a trace; row 0 is the first step, row t the XOR of step t and step t - 1.

    Raises TraceError when the file is missing, no npz, truncated, empty, or holds arrays of another
    type or shape than ``dtype`` ("bf16", "fp16": uint16; "fp32": uint32) needs.
    """
    rows: dict[str, npt.NDArray[Any]] = {}
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise TraceError(f"{path}: an .npy array, not an .npz trace")
        with archive:
            for name in archive.files:
                rows[name] = _rows(path, name, archive, dtype)
    except FileNotFoundError as error:
        raise TraceError(f"{path}: no such file") from error
    except TraceError:
        raise
    except MemoryError as error:
        raise TraceError(f"{path}: needs more memory than there is ({error})") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise TraceError(f"{path}: not a readable .npz trace ({reason})") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        # numpy takes what is no archive for a pickle, and says so.
        reason = "no archive" if "pickle" in str(error) and not rows else str(error)
        raise TraceError(f"{path}: not a readable .npz trace ({reason})") from error
    except Exception as error:  # zlib.error, struct.error and others of a damaged archive
        raise TraceError(f"{path}: damaged ({type(error).__name__}: {error})") from error
    if not rows:
        raise TraceError(f"{path}: empty, no shard in it")
    longest = max(len(one) for one in rows.values())
    if steps is not None and steps > longest:
        raise TraceError(f"{path}: --steps {steps}, but its longest shard has {longest} steps")
    return Trace({name: _patterns(one, steps) for name, one in rows.items()})


def _rows(path: Path, name: str, archive: Any, dtype: str) -> npt.NDArray[Any]:
    try:
        rows = archive[name]
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        raise TraceError(f"{path}: shard {name!r} holds Python objects, not numbers") from error
    wanted = _WORDS[dtype]
    if not isinstance(rows, np.ndarray):
        raise TraceError(f"{path}: {name!r} is no array; a trace holds .npy arrays only")
    if rows.dtype != wanted:
        raise TraceError(f"{path}: shard {name!r} is {rows.dtype}, {dtype} needs {wanted.name}")
    if rows.ndim != 2:
        raise TraceError(f"{path}: shard {name!r} has shape {rows.shape}, need (steps, values)")
    if rows.size == 0:
        raise TraceError(f"{path}: shard {name!r} is empty, shape {rows.shape}")
    return rows


def _patterns(rows: npt.NDArray[Any], steps: int | None) -> npt.NDArray[Any]:
    """The bits of each step; a shard with fewer steps ends earlier."""
    return np.asarray(np.bitwise_xor.accumulate(rows[:steps], axis=0))
