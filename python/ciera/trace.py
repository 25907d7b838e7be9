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
    shards: dict[str, npt.NDArray[Any]] = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise TraceError(f"{path}: an .npy array, not an .npz trace")
            for name in archive.files:
                shards[name] = _patterns(path, name, archive[name], dtype, steps)
    except FileNotFoundError as error:
        raise TraceError(f"{path}: no such file") from error
    except TraceError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise TraceError(f"{path}: not a readable .npz trace ({error})") from error
    except Exception as error:  # zlib.error, struct.error and others of a damaged archive
        raise TraceError(f"{path}: damaged ({type(error).__name__}: {error})") from error
    if not shards:
        raise TraceError(f"{path}: empty, no shard in it")
    return Trace(shards)


def _patterns(
    path: Path, name: str, rows: npt.NDArray[Any], dtype: str, steps: int | None
) -> npt.NDArray[Any]:
    wanted = _WORDS[dtype]
    if rows.dtype != wanted:
        raise TraceError(f"{path}: shard {name!r} is {rows.dtype}, {dtype} needs {wanted.name}")
    if rows.ndim != 2:
        raise TraceError(f"{path}: shard {name!r} has shape {rows.shape}, need (steps, values)")
    if rows.size == 0:
        raise TraceError(f"{path}: shard {name!r} is empty, shape {rows.shape}")
    if steps is not None and steps > len(rows):
        raise TraceError(f"{path}: --steps {steps}, but shard {name!r} has {len(rows)} steps")
    return np.asarray(np.bitwise_xor.accumulate(rows[:steps], axis=0))
