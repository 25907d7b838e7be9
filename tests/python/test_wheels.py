"""Finding libraries in wheels, and what coder nvcomp-ans says where it cannot run."""

from __future__ import annotations

import os
from pathlib import Path

import ciera
import pytest
from ciera import info, nvcomp, wheels

VARIABLE = "CIERA_NVCOMP_LIBRARY"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of libraries of a wheel that is installed, with nothing in it."""
    monkeypatch.setattr(wheels, "_roots", lambda: iter([tmp_path]))
    monkeypatch.setenv(VARIABLE, "")  # so that it is restored
    folder = tmp_path / "libnvcomp/lib64"
    folder.mkdir(parents=True)
    return folder


def test_the_newest_library_of_a_wheel_is_taken(wheel: Path) -> None:
    nvcomp.point_to_wheel()
    assert os.environ[VARIABLE] == ""
    for name in ("libnvcomp.so.5", "libnvcomp.so.6"):
        os.environ[VARIABLE] = ""
        (wheel / name).touch()
        nvcomp.point_to_wheel()
        assert os.environ[VARIABLE] == str(wheel / name)


def test_what_the_caller_has_set_stays(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (wheel / "libnvcomp.so.6").touch()
    monkeypatch.setenv(VARIABLE, "/my/libnvcomp.so.6")
    nvcomp.point_to_wheel()
    assert os.environ[VARIABLE] == "/my/libnvcomp.so.6"


def test_a_library_in_the_process_is_left_to_be_found(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wheel / "libnvcomp.so.6").touch()
    monkeypatch.setattr(wheels, "_loaded_already", lambda places: True)
    nvcomp.point_to_wheel()
    assert os.environ[VARIABLE] == ""


def test_info_tells_why_there_is_no_nvcomp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/libnvcomp.so.6")
    entry = info.collect()["coders"]["nvcomp-ans"]
    if "this build has no CUDA" not in entry["detail"]:
        assert "/nowhere/libnvcomp.so.6" in entry["detail"]
    assert not entry["available"]


def test_the_host_does_not_code_with_nvcomp() -> None:
    (transport,) = ciera.loopback(1)
    with pytest.raises(ciera.ArgumentError, match="coder nvcomp-ans runs on a GPU only"):
        ciera.CompressedAllgather(transport, coder="nvcomp-ans")
