"""Where wheels keep the CUDA libraries that are loaded at run time."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path


def _roots() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Path(place)


def _loaded_already(places: tuple[str, ...]) -> bool:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return False
    return any(f"/{Path(place).name}" in maps for place in places)


def point_to_wheel(variable: str, *places: str) -> None:
    """Sets an environment variable to an installed wheel's library.

    ``places`` lie in the package ``nvidia``; the first that is there is taken. Nothing changes when
    the caller has set the variable, nor when the process has loaded one of them: that one is then
    used.
    """
    if os.environ.get(variable) or _loaded_already(places):
        return
    roots = list(_roots())
    for place in places:
        for root in roots:
            if (root / place).is_file():
                os.environ[variable] = str(root / place)
                return
