"""The cache of built models: whole or absent, built once, rebuilt when damaged."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from checks.errors import BadRequest
from checks.models.cache import SEAL, build_once, hash_content, is_intact, locate_cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "plumbline" / "models"


def write_two(directory: Path) -> None:
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"weights")


def test_the_cache_is_under_xdg_cache_home_or_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert locate_cache() == tmp_path / "x" / "plumbline" / "models"
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert locate_cache() == tmp_path / ".cache" / "plumbline" / "models"


def test_a_second_call_finds_what_the_first_built(cache: Path) -> None:
    built = []

    def build(directory: Path) -> None:
        built.append(directory)
        write_two(directory)

    assert build_once("tiny-a", build) == build_once("tiny-a", build) == cache / "tiny-a"
    assert len(built) == 1
    assert sorted(path.name for path in (cache / "tiny-a").iterdir()) == ["config.json", "model.safetensors", SEAL]


def _break_content(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"weighty")


def _break_length(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"weig")


def _break_file(directory: Path) -> None:
    (directory / "config.json").unlink()


def _break_seal(directory: Path) -> None:
    (directory / SEAL).write_text("[]")


def _break_json(directory: Path) -> None:
    (directory / SEAL).write_text('{"config.json": ')


@pytest.mark.parametrize("damage", [_break_content, _break_length, _break_file, _break_seal, _break_json])
def test_a_damaged_directory_is_built_again(cache: Path, damage: Callable[[Path], None]) -> None:
    directory = build_once("tiny-a", write_two)
    damage(directory)
    assert not is_intact(directory)
    build_once("tiny-a", write_two)
    assert is_intact(directory)
    assert (directory / "model.safetensors").read_bytes() == b"weights"


def test_a_build_that_fails_leaves_nothing(cache: Path) -> None:
    def build(directory: Path) -> None:
        write_two(directory)
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        build_once("tiny-a", build)
    assert [path.name for path in cache.iterdir()] == [".tiny-a.lock"]


def _slow_build(log: Path, directory: Path) -> None:
    with log.open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(0.3)
    write_two(directory)


def _build_in_process(log: Path) -> bool:
    return is_intact(build_once("tiny-a", partial(_slow_build, log)))


def test_four_processes_build_once(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "builds"
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(_build_in_process, [log] * 4) == [True] * 4
    assert len(log.read_text().splitlines()) == 1


def test_a_cache_that_cannot_be_written_is_a_request_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(BadRequest, match=r"XDG_CACHE_HOME: .*cannot be written .*; set it to a directory"):
        build_once("tiny-a", write_two)


def test_a_key_depends_on_content_and_not_on_order() -> None:
    assert hash_content({"a": 1, "b": [2]}) == hash_content({"b": [2], "a": 1})
    assert hash_content({"a": 1}) != hash_content({"a": 2})
    assert len(hash_content({})) == 12
