"""The rooms of the native tree, and that public headers stand alone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
# A layer includes itself and those to its left. exec comes before codec, which runs on its pool.
LAYERS = ["base", "wire", "exec", "codec", "cache", "policy", "transport", "pipeline"]
FOREIGN = re.compile(r'#include\s*[<"](cuda|cub/|nccl\.h|mpi|Python\.h|pybind11|torch)')
CUDA = re.compile(r'#include\s*[<"](cuda|cub/)')
# Which rooms may see which foreign headers.
ROOMS = {
    re.compile(r"exec/cuda|codec/cuda/|transport/nccl/"): CUDA,
    re.compile(r"transport/mpi/"): re.compile(r"#include\s*<mpi\.h>"),
}


def includes(path: Path) -> list[str]:
    return re.findall(r'#include\s+"([^"]+)"', path.read_text())


def violations(path: Path, layer: str, text_includes: list[str]) -> list[str]:
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    return [
        f"{path.name} ({layer}) includes {name}"
        for name in text_includes
        if name.split("/")[0] in LAYERS and name.split("/")[0] not in allowed
    ]


def foreign(place: str, text: str) -> list[str]:
    """Includes of `text`, the file at `place` in native/src, that are not allowed there."""
    lines = [line for line in text.splitlines() if FOREIGN.match(line)]
    return [
        line
        for line in lines
        if not any(room.match(place) and seen.match(line) for room, seen in ROOMS.items())
    ]


def test_host_and_cuda_codecs_do_not_see_each_other() -> None:
    for own, other in (("host", "cuda"), ("cuda", "host")):
        files = sorted((NATIVE / "src/codec" / own).iterdir())
        assert files
        for path in files:
            assert not [name for name in includes(path) if name.startswith(f"codec/{other}/")], path


def test_a_layer_includes_only_layers_to_its_left() -> None:
    found = []
    for layer in LAYERS:
        folder = NATIVE / "src" / layer
        files = sorted(path for end in ("[hc]pp", "cu", "cuh") for path in folder.rglob(f"*.{end}"))
        assert files, layer
        for path in files:
            found += violations(path, layer, includes(path))
            found += foreign(path.relative_to(NATIVE / "src").as_posix(), path.read_text())
    assert found == []


def test_the_layering_check_can_fail() -> None:
    assert violations(Path("x.hpp"), "wire", ["cache/shard_table.hpp"])
    cuda, nccl = "#include <cuda_runtime_api.h>", "#include <nccl.h>"
    assert foreign("codec/host/rans.cpp", cuda) == [cuda]
    assert foreign("transport/loopback.cpp", cuda) == [cuda]
    assert foreign("exec/cuda_check.hpp", cuda) == []
    assert foreign("transport/nccl/nccl_api.hpp", f"{cuda}\n{nccl}") == [nccl]
    assert foreign("transport/loopback.cpp", "#include <mpi.h>") == ["#include <mpi.h>"]


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
