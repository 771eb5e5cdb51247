"""The data directory of an installation: whose it is, and what it keeps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checks.errors import BadRequest
from plumbline_web.up.directory import (
    LONGEST_SOCKET_NAME,
    LONGEST_SOCKET_PATH,
    default_directory,
    hold_directory,
    read_secret_key,
)


def test_a_directory_that_is_held_is_refused_with_the_holder(tmp_path: Path) -> None:
    with hold_directory(tmp_path / "data"), pytest.raises(BadRequest) as refused, hold_directory(tmp_path / "data"):
        pass
    assert str(refused.value) == (
        f"data: {tmp_path}/data is in use by process {os.getpid()}; stop that one first, or name another directory."
    )


def test_a_directory_that_was_let_go_can_be_held_again(tmp_path: Path) -> None:
    for _ in range(2):
        with hold_directory(tmp_path / "data") as directory:
            assert directory.logs.is_dir()
            assert directory.sockets.is_dir()
        assert not directory.sockets.exists()


def test_a_directory_of_other_files_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter 1")
    with pytest.raises(BadRequest, match="holds files that are not Plumbline's"), hold_directory(tmp_path):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(BadRequest, match="cannot be used: File exists"), hold_directory(tmp_path / "data"):
        pass


def test_the_secret_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    with hold_directory(tmp_path / "data") as directory:
        key = read_secret_key(directory)
        assert (len(key), read_secret_key(directory)) == (64, key)
        assert (directory.path / "secret-key").stat().st_mode & 0o777 == 0o600


def test_sockets_of_a_long_path_lie_in_a_short_one_that_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 100)
    with hold_directory(path) as directory:
        assert len(os.fsencode(directory.sockets / LONGEST_SOCKET_NAME)) <= LONGEST_SOCKET_PATH
        assert directory.sockets.stat().st_mode & 0o777 == 0o700
    assert not directory.sockets.exists()


def test_sockets_that_a_killed_process_left_are_removed(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 100)
    left = tmp_path / "left"
    (left / "postgres").mkdir(parents=True)
    with hold_directory(path):
        pass
    (path / "sockets").symlink_to(left)
    with hold_directory(path) as directory:
        assert not left.exists()
        assert directory.sockets != left


def test_the_default_is_in_the_xdg_data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "plumbline"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/void")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_directory() == tmp_path / ".local" / "share" / "plumbline"
