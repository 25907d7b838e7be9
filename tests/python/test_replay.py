"""The ``ciera`` command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "tests/data/sample_trace.npz"


def ciera(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ciera.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_replay_prints_json_alone_in_the_published_schema() -> None:
    done = ciera("replay", str(SAMPLE), "--json", "-")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    results = json.loads(done.stdout)
    assert results["total"]["bitwise_equal"] is True
    assert set(results["shards"]) == {"expert_ffn", "attention", "router", "norm", "embed_head"}
    for entry in [results["total"], *results["shards"].values()]:
        assert entry["mismatches"] == 0
        for phase, steps in (("key_frame", 1), ("steady", 3)):
            assert set(entry[phase]) == {
                "steps",
                "raw_bytes",
                "wire_bytes",
                "wire_ratio",
                "encode_gbps",
                "decode_gbps",
            }
            assert entry[phase]["steps"] == steps
    assert results["total"]["steady"]["wire_ratio"] > 1.6


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_replay_takes_other_dtypes_and_uneven_parts(dtype: str, tmp_path: Path) -> None:
    words = {"fp16": np.uint16, "fp32": np.uint32}[dtype]
    trace = tmp_path / "trace.npz"
    rows = np.random.default_rng(1).integers(0, 9, (3, 1001)).astype(words)
    np.savez(trace, a=rows, b=rows[:2, :3])
    out = tmp_path / "out.json"
    done = ciera(
        "replay", str(trace), "--dtype", dtype, "--world-size", "3", "--json", str(out),
        "--reuse", "all", "--coder", "raw", "--block-size", "64",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    modes = json.loads(out.read_text())["modes"]
    assert all(one["total"]["bitwise_equal"] for one in modes.values())


def bad_traces(folder: Path) -> dict[str, list[str]]:
    def save(name: str, **arrays: Any) -> str:
        np.savez(folder / name, **arrays)
        return str(folder / name)

    good = SAMPLE.read_bytes()
    (folder / "cut.npz").write_bytes(good[: len(good) // 2])
    (folder / "damaged.npz").write_bytes(good[:3000] + b"x" * 50 + good[3050:])
    (folder / "text.npz").write_text("no trace")
    (folder / "void.npz").write_bytes(b"")
    np.save(folder / "plain.npy", np.zeros((2, 2), np.uint16))
    rows = np.zeros((2, 8), np.uint16)
    return {
        "missing": [str(folder / "missing.npz")],
        "directory": [str(folder)],
        "truncated": [str(folder / "cut.npz")],
        "damaged": [str(folder / "damaged.npz")],
        "text": [str(folder / "text.npz")],
        "void": [str(folder / "void.npz")],
        "npy": [str(folder / "plain.npy")],
        "no shard": [save("none.npz")],
        "no values": [save("empty.npz", a=rows[:, :0])],
        "wrong dtype": [save("float.npz", a=rows.astype(np.float32))],
        "wrong shape": [save("flat.npz", a=rows[0])],
        "pickled": [save("object.npz", a=np.array([{}], dtype=object))],
        "fp32 from 16": [save("u16.npz", a=rows), "--dtype", "fp32"],
        "unknown mode": [str(SAMPLE), "--reuse", "telepathy"],
        "block size": [str(SAMPLE), "--block-size", "100"],
        "steps": [str(SAMPLE), "--steps", "99"],
        "no steps": [str(SAMPLE), "--steps", "0"],
        "ranks": [str(SAMPLE), "--world-size", "0"],
    }


def test_bad_input_exits_2_with_one_clear_line(tmp_path: Path) -> None:
    for what, arguments in bad_traces(tmp_path).items():
        done = ciera("replay", *arguments)
        assert done.returncode == 2, (what, done)
        assert done.stdout == "", what
        errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1, (what, done.stderr)
        assert "Traceback" not in done.stderr, what


def test_info_names_every_part_and_a_reason_for_what_is_missing() -> None:
    collected = json.loads(ciera("info", "--json").stdout)
    assert collected["backends"]["host"]["available"]
    for group in ("backends", "coders", "transports"):
        for name, entry in collected[group].items():
            assert entry["detail"], name
    shown = ciera("info")
    assert shown.returncode == 0
    words = " ".join(shown.stdout.split())
    for entry in collected["transports"].values():
        for extra in ("[mpi]", "[torch]"):  # no markup, however wide the table
            assert words.count(extra) >= entry["detail"].count(extra)
