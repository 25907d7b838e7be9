"""The installed C++ package, and bench/ciera_perf built against it and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "tests/data/sample_trace.npz"
TOOLS = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
ENVIRONMENT = {
    **os.environ, "PATH": TOOLS, "OMPI_MCA_btl": "^tcp", "OMPI_MCA_pml": "ob1",
}  # fmt: skip
SMALL = ["-b", "4K", "-e", "64K", "-f", "4", "-n", "3", "-w", "1", "-c", "1"]
COLUMNS = 3 + 2 * 12

Perf = Callable[..., subprocess.CompletedProcess[str]]


def run(*command: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    words[0] = shutil.which(words[0], path=TOOLS) or words[0]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=ENVIRONMENT)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def configure_and_build(source: Path, build: Path, *settings: str) -> None:
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_CXX_COMPILER_LAUNCHER=", *settings)  # fmt: skip
    run("cmake", "--build", build)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, installed. Without its GPU side, which would take minutes."""
    work = tmp_path_factory.mktemp("library")
    configure_and_build(
        ROOT, work / "build", "-DCIERA_PYTHON=OFF", "-DCIERA_MPI=ON", "-DCIERA_CUDA=OFF"
    )
    run("cmake", "--install", work / "build", "--prefix", work / "prefix")
    return work / "prefix"


@pytest.fixture(scope="module")
def perf(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Perf:
    """Runs ciera_perf on a number of ranks."""
    work = tmp_path_factory.mktemp("perf")
    source = work / "source"  # away from the repository: nothing of it is in reach
    shutil.copytree(ROOT / "bench/ciera_perf", source)
    configure_and_build(source, work / "build", f"-DCMAKE_PREFIX_PATH={prefix}")

    def perf_on(ranks: int, *flags: object, check: bool = True) -> Any:
        return run(
            "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
            "-n", ranks, work / "build/ciera_perf", *flags, check=check,
        )  # fmt: skip

    return perf_on


def rows_of(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("data", [[], ["--trace", SAMPLE], ["--trace", SAMPLE, "--shard", "norm"]])
def test_every_size_has_a_row_and_nothing_is_wrong(
    perf: Perf, data: list[object], tmp_path: Path
) -> None:
    done = perf(2, *SMALL, *data, "--json", tmp_path / "rows.json")
    rows = rows_of(done.stdout)
    assert [row[0] for row in rows] == ["4096", "16384", "65536"]
    for row in rows:
        assert len(row) == COLUMNS
        assert row[1:3] == [str(int(row[0]) // 4), "bfloat16"]
        assert row[12] == row[24] == "0"
    assert "# Out of bounds values : 0 OK" in done.stdout
    lines = [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()]
    assert [line["size"] for line in lines] == [4096, 16384, 65536]
    for line in lines:
        for place in ("out_of_place", "in_place"):
            result = line[place]
            assert result["wrong"] == 0
            assert result["wire_ratio"] > 1
            assert result["raw_bytes"] == line["size"]
            assert 0 < result["p50_us"] <= result["p99_us"]
            assert result["plain_busbw"] == pytest.approx(result["plain_algbw"] / 2, abs=1e-5)


@pytest.mark.parametrize("datatype", ["bfloat16", "half", "float"])
@pytest.mark.parametrize("reuse", ["off", "exponent-only", "exponent-block"])
def test_every_mode_and_type_runs_on_three_ranks(perf: Perf, datatype: str, reuse: str) -> None:
    done = perf(3, "-b", "30000", "-e", "30000", "-n", 2, "-w", 1, "-d", datatype,
                "--reuse", reuse, "--json", "-")  # fmt: skip
    (line,) = [json.loads(text) for text in done.stdout.splitlines()]
    assert (line["datatype"], line["reuse"], line["ranks"]) == (datatype, reuse, 3)
    assert line["out_of_place"]["wrong"] == line["in_place"]["wrong"] == 0
    assert (line["out_of_place"]["wire_ratio"] > 1) == (reuse != "off")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_rows_of_a_trace_are_differences(perf: Perf, save: Any, tmp_path: Path) -> None:
    """Steps that change nothing: all but sign and mantissa, a byte a value, is saved."""
    weights = np.random.default_rng(7).normal(0, 0.02, 5000).astype(np.float32)
    rows = np.zeros((3, 5000), np.uint16)
    rows[0] = weights.view(np.uint32) >> 16
    save(tmp_path / "still.npz", w=rows)
    done = perf(1, "-b", "64K", "-e", "64K", "-n", 4, "--trace", tmp_path / "still.npz",
                "--shard", "w", "--json", "-")  # fmt: skip
    ratio = json.loads(done.stdout)["out_of_place"]["wire_ratio"]
    assert 1.95 < ratio < 2


def test_unchecked_runs_say_so(perf: Perf) -> None:
    done = perf(2, "-b", "8K", "-e", "8K", "-n", 1, "-c", 0)
    (row,) = rows_of(done.stdout)
    assert row[12] == row[24] == "N/A"


def test_help_is_printed_once(perf: Perf) -> None:
    done = perf(2, "--help")
    assert done.stdout.count("usage:") == 1


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["-q", "4"], "-q: unknown flag"),
        (["--no-such"], "--no-such: unknown flag"),
        (["-g", "2"], "-g 2: give 1"),
        (["-b", "1X"], "-b 1X: give bytes"),
        (["-b", "2", "-e", "2"], "-b 2: give 4 or more"),
        (["-b", "64K", "-e", "4K"], "-e 4096: give -b or more"),
        (["-n", "0"], "-n 0: give 1"),
        (["--reuse", "sometimes"], "--reuse sometimes: give off"),
        (["--block-size", "12"], "--block-size 12: give a multiple of 8"),
        (["--trace", "absent.npz"], "absent.npz: cannot be opened"),
        (["--trace", __file__], "not an .npz archive"),
        (["--trace", SAMPLE, "--shard", "absent"], "no entry absent.npy; it holds expert_ffn.npy"),
        (["--trace", SAMPLE, "-d", "float"], "must be a C-ordered array <u4"),
    ],
)
def test_a_wrong_flag_is_one_line_and_status_2(
    perf: Perf, flags: list[object], reason: str
) -> None:
    done = perf(2, *flags, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("ciera_perf:")]
    assert reason in line


def test_a_damaged_trace_is_refused(perf: Perf, tmp_path: Path) -> None:
    whole = SAMPLE.read_bytes()
    broken = tmp_path / "broken.npz"
    middle = len(whole) // 10
    for damaged in (
        whole[:-1000],
        whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        whole[:middle] + whole[middle + 1 :],
    ):
        broken.write_bytes(damaged)
        done = perf(1, "--trace", broken, check=False)
        assert done.returncode == 2
        assert f"ciera_perf: {broken}: " in done.stderr


def test_the_core_is_found_by_a_project_without_c_and_mpi(prefix: Path, tmp_path: Path) -> None:
    lines = "cmake_minimum_required(VERSION 3.28)\nproject(user LANGUAGES CXX)\n"
    (tmp_path / "CMakeLists.txt").write_text(
        lines + "find_package(ciera 0.1 CONFIG REQUIRED)\n"
        "add_executable(user user.cpp)\ntarget_link_libraries(user ciera::ciera)\n"
    )
    (tmp_path / "user.cpp").write_text(
        '#include "ciera/loopback.hpp"\n'
        "int main() { return int(ciera::make_loopback(ciera::WorldSize{3}, {}).size()) - 3; }\n"
    )
    configure_and_build(tmp_path, tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run(tmp_path / "build/user")
    (tmp_path / "CMakeLists.txt").write_text(
        lines + "find_package(ciera CONFIG REQUIRED COMPONENTS mpi)\n"
    )
    done = run(
        "cmake", "-S", tmp_path, "-B", tmp_path / "mpi", f"-DCMAKE_PREFIX_PATH={prefix}",
        check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "does not enable C" in done.stderr
