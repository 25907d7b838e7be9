"""The rooms of the native tree, and that public headers stand alone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
# A layer includes itself and those to its left. exec comes before codec, which runs on its pool.
LAYERS = ["base", "wire", "exec", "codec", "cache", "policy", "transport", "pipeline"]
FOREIGN = re.compile(r'#include\s*[<"](cuda|nccl|mpi|Python\.h|pybind11|torch)')
# The only folder of a layer that sees a foreign API, by name.
MAY_SEE = {"mpi": {"mpi"}}


def includes(path: Path) -> list[str]:
    return re.findall(r'#include\s+"([^"]+)"', path.read_text())


def violations(path: Path, layer: str, text_includes: list[str]) -> list[str]:
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    return [
        f"{path.name} ({layer}) includes {name}"
        for name in text_includes
        if name.split("/")[0] in LAYERS and name.split("/")[0] not in allowed
    ]


def test_a_layer_includes_only_layers_to_its_left() -> None:
    found = []
    for layer in LAYERS:
        files = sorted((NATIVE / "src" / layer).rglob("*.[hc]pp"))
        assert files, layer
        for path in files:
            found += violations(path, layer, includes(path))
            foreign = {match[1] for match in FOREIGN.finditer(path.read_text())}
            assert foreign <= MAY_SEE.get(path.parent.name, set()), path
    assert found == []


def test_the_layering_check_can_fail() -> None:
    assert violations(Path("x.hpp"), "wire", ["cache/shard_table.hpp"])


@pytest.mark.parametrize("header", sorted((NATIVE / "include/ciera").glob("*.hpp")), ids=str)
def test_public_header_compiles_alone(header: Path) -> None:
    command = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++"]
    done = subprocess.run(
        [*command, f"-I{NATIVE / 'include'}", "-"],
        input=f'#include "ciera/{header.name}"\n',
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not FOREIGN.search(header.read_text())
