"""What this installation can do, and why not where it cannot."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from typing import Any

from ciera import _native, nvcomp
from ciera.transports.nccl import library as nccl_library


def _package(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _mpi() -> tuple[bool, str]:
    version = _package("mpi4py")
    if version is None:
        return False, "mpi4py is not installed; pip install 'ciera[mpi]' and an MPI library"
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return False, f"mpi4py {version} found no MPI library ({str(error).splitlines()[0]})"
    return True, f"mpi4py {version}, {MPI.Get_library_version().split(',')[0].strip()}"


def _torch() -> tuple[bool, str]:
    if importlib.util.find_spec("torch") is None:
        return False, "torch is not installed; pip install 'ciera[torch]'"
    return True, f"torch {_package('torch')}"


def collect() -> dict[str, Any]:
    """Versions, and for each backend, coder and transport whether it is available and why."""
    vector = ", ".join(_native.cpu_features()) or "no vector extension used"
    rows = {
        "backends": {
            "host": (True, f"{platform.machine()}, {vector}"),
            "cuda": _native.cuda_support(),
        },
        "coders": {
            "raw": (True, "stored as is"),
            "rans": (True, "interleaved rANS, 32 lanes"),
            "nvcomp-ans": nvcomp.library(),
        },
        "transports": {
            "loopback": (True, "ranks as threads"),
            "mpi": _mpi(),
            "torch": _torch(),
            "nccl": nccl_library(),
        },
    }
    return {
        "versions": {
            "ciera": _native.__version__,
            "wire format": str(_native.WIRE_VERSION),
            "python": platform.python_version(),
            "numpy": _package("numpy") or "unknown",
        },
        **{
            group: {
                name: {"available": available, "detail": detail}
                for name, (available, detail) in entries.items()
            }
            for group, entries in rows.items()
        },
    }
