"""The ``ciera`` command."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import zipfile
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
    with zipfile.ZipFile(folder / "readme.npz", "w") as archive:
        archive.writestr("README", "no array")
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<u2", "fortran_order": False, "shape": (1 << 20, 1 << 36)}
    )
    with zipfile.ZipFile(folder / "huge.npz", "w") as archive:
        archive.writestr("w.npy", head.getvalue())
    rows = np.zeros((2, 8), np.uint16)
    return {
        "no such file": [str(folder / "missing.npz")],
        "directory": [str(folder)],
        "truncated": [str(folder / "cut.npz")],
        "damaged": [str(folder / "damaged.npz")],
        "text": [str(folder / "text.npz")],
        "void": [str(folder / "void.npz")],
        "an .npy array": [str(folder / "plain.npy")],
        "no array": [str(folder / "readme.npz")],
        "more memory": [str(folder / "huge.npz")],
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
        if what in ("an .npy array", "no array", "more memory", "no such file"):
            assert what in done.stderr
        errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1, (what, done.stderr)
        assert "Traceback" not in done.stderr, what


def test_info_names_every_part_and_a_reason_for_what_is_missing() -> None:
    collected = json.loads(ciera("info", "--json").stdout)
    assert collected["backends"]["host"]["available"]
    for group in ("backends", "coders", "transports"):
        for name, entry in collected[group].items():
            assert entry["detail"], name
    assert ciera("info").returncode == 0


def test_a_shorter_shard_ends_earlier(tmp_path: Path) -> None:
    rows = np.random.default_rng(2).integers(0, 9, (4, 100)).astype(np.uint16)
    np.savez(tmp_path / "t.npz", long=rows, short=rows[:2])
    done = ciera("replay", str(tmp_path / "t.npz"), "--steps", "3", "--json", "-")
    shards = json.loads(done.stdout)["shards"]
    assert [shards[name]["steady"]["steps"] for name in ("long", "short")] == [2, 1]
    done = ciera("replay", str(tmp_path / "t.npz"), "--steps", "5")
    assert "longest shard has 4 steps" in done.stderr


def on_a_terminal(*arguments: str, width: int) -> list[str]:
    """Lines that the command prints on a terminal of that width."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "xterm"}
    command = [sys.executable, "-m", "ciera.cli", *arguments]
    process = subprocess.Popen(command, stdout=follower, env=environment)
    os.close(follower)
    text = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # how Linux says that the last writer is gone
            break
        if not part:
            break
        text += part
    os.close(leader)
    assert process.wait() == 0
    return text.decode().splitlines()


def test_the_table_is_whole_at_80_columns_with_any_name(tmp_path: Path) -> None:
    rows = np.random.default_rng(3).integers(0, 9, (2, 4099)).astype(np.uint16)
    names = ["total", "[mpi] [/red]", "red\x1b[31m\u202e", "a" * 60]
    np.savez(tmp_path / "t.npz", **{name: rows for name in names})
    lines = on_a_terminal("replay", str(tmp_path / "t.npz"), width=80)
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith(("shard", "all"))] == [
        "shard total",
        "shard [mpi] [/red]",
        r"shard red\x1b[31m\u202e",
        f"shard {'a' * 60}",
        "all shards",
    ]
    whole = {f"{n * 4099 * 2:,}" for n in (1, 4)}
    assert whole <= {word for line in lines for word in line.split()}
    assert not any("…" in line for line in lines)


def test_one_rank_decodes_nothing() -> None:
    done = ciera("replay", str(SAMPLE), "--world-size", "1")
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("  ")]
    assert {row[-1] for row in rows if row[0] in ("key", "steady")} == {"-"}


def test_info_shows_extras_in_brackets() -> None:
    text = "import sys; sys.modules['torch'] = None; import ciera.cli as c, importlib.util as u; " \
        "u.find_spec = lambda name: None; c.cli(['info'])"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert "pip install 'ciera[torch]'" in done.stdout


@pytest.mark.parametrize("arguments", [["replay", str(SAMPLE)], ["info"], ["--help"]])
def test_a_closed_pipe_ends_the_command_in_silence(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "ciera.cli", *arguments]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_ctrl_c_ends_a_replay_with_130(tmp_path: Path) -> None:
    rows = np.zeros((2000, 20000), np.uint16)
    np.savez(tmp_path / "t.npz", w=rows)
    text = (
        "import os, signal, ciera.cli as c, ciera.replay as r\n"
        "step = r._replay_step\n"
        "def stepped(*a):\n"
        "    if a[4] == 5 and a[0].rank == 1: os.kill(os.getpid(), signal.SIGINT)\n"
        "    step(*a)\n"
        "r._replay_step = stepped\n"
        f"c.cli(['replay', {str(tmp_path / 't.npz')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
