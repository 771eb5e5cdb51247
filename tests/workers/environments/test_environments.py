"""`plumbline env` against a package index of small wheels that the test writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from checks.errors import BadRequest
from workers.cli import main
from workers.environments.pip import find_reason
from workers.environments.resolving import parse_wish
from workers.environments.store import Store, make_key, python_of
from workers.environments.using import running_in
from workers.frameworks.interpreter import framework_python


def write_wheel(folder: Path, name: str, version: str, *, code: str = "", needs: tuple[str, ...] = ()) -> None:
    """A release of a package with one module."""
    stem = f"{name}-{version}"
    requires = "".join(f"Requires-Dist: {each}\n" for each in needs)
    files = {
        f"{name}.py": code,
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{stem}.dist-info/RECORD"] = "".join(f"{path},,\n" for path in files)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip finds releases, and nowhere else."""
    folder = tmp_path / "releases"
    folder.mkdir()
    write_wheel(folder, "trainer", "1.0", code="import helper", needs=("helper>=1",))
    write_wheel(folder, "trainer", "2.0", code="import helper", needs=("helper>=2",))
    write_wheel(folder, "trainer", "3.0", code="import missing")
    write_wheel(folder, "helper", "1.5")
    write_wheel(folder, "helper", "2.5")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("PLUMBLINE_ENVIRONMENTS", str(tmp_path / "environments"))
    monkeypatch.setenv("COLUMNS", "160")
    return Store()


def test_an_environment_is_built_once_named_checked_and_removed(
    releases: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", "create", "trainer==1.0"]) == 0
    assert "trainer-1.0: built in " in capsys.readouterr().out
    named = store.find("trainer-1.0")
    assert named.built is not None
    assert named.built.packages == ("helper==2.5", "trainer==1.0")
    assert named.built.requested == ("trainer==1.0",)
    assert named.built.key == make_key(python=named.built.python, packages=named.built.packages)
    assert named.built.size_bytes > 0
    # Asked for in other words, it is the same list of packages and so the same environment.
    assert main(["env", "create", "trainer==1.0", "--with", "helper==2.5", "--name", "again"]) == 0
    assert ", 2 packages" in (said := capsys.readouterr().out)
    assert said.startswith("again: was there already, since 20")
    assert store.list_keys() == (named.built.key,)
    assert main(["env", "create", "trainer==1.0", "--with", "helper<2", "--name", "older"]) == 0
    assert len(store.list_keys()) == 2
    capsys.readouterr()
    assert main(["env", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("again", "older", "trainer-1.0", named.built.key))
    assert main(["env", "check"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{name}: as it was built" for name in store.list_names()]
    site = next(store.directory(named.built.key).glob("lib/python*/site-packages"))
    (site / "helper-2.5.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: helper\nVersion: 2.6\n")
    assert main(["env", "check", "again", "older"]) == 1
    assert capsys.readouterr().out == "again: helper is 2.6 now; 2.5 was installed\nolder: as it was built\n"
    assert main(["env", "remove", "trainer-1.0"]) == 0
    assert capsys.readouterr().out == "trainer-1.0: forgotten\nnothing to delete: other names mean what is built\n"
    assert named.built.key in store.list_keys()  # `again` still means it
    assert main(["env", "remove", "again"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"again: forgotten\n{named.built.key} (trainer==1.0): deleted, ")
    assert shown.endswith(" MB freed\n")
    assert not list(store.path.glob(f"{named.built.key}.*"))  # neither its log nor its lock
    assert store.list_keys() == (make_key(python=named.built.python, packages=("helper==1.5", "trainer==1.0")),)
    assert store.list_names() == ("older",)


def test_what_was_asked_for_in_the_same_words_is_there_without_asking_pip(
    releases: Path, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", "create", "trainer==1.0"]) == 0
    write_wheel(releases, "helper", "2.6")
    assert main(["env", "create", "trainer==1.0", "--name", "again"]) == 0
    assert ", since 20" in capsys.readouterr().out
    assert store.find("again").built == store.find("trainer-1.0").built
    monkeypatch.setenv("PIP_FIND_LINKS", str(releases / "nowhere"))
    assert main(["env", "create", "trainer==1.0", "--name", "offline"]) == 0
    monkeypatch.setenv("PIP_FIND_LINKS", str(releases))
    # What has come out since is taken where it is asked for, and where other places are named.
    assert main(["env", "create", "trainer==1.0", "--name", "newer", "--upgrade"]) == 0
    newer = store.find("newer").built
    assert newer is not None
    assert newer.packages == ("helper==2.6", "trainer==1.0")
    # An environment whose manifest was damaged is not there: it is built again, and whole then.
    (store.directory(newer.key) / "environment.json").write_text("{")
    assert main(["env", "list"]) == 0
    assert f"begun and not ended: {newer.key}" in capsys.readouterr().out
    assert main(["env", "create", "trainer==1.0", "--name", "newer", "--upgrade"]) == 0
    mended = store.find("newer").built
    assert mended is not None
    assert (mended.key, mended.packages) == (newer.key, newer.packages)


def test_a_lock_that_went_with_its_environment_is_not_waited_for_twice(store: Store) -> None:
    with store.hold("abc", waiting=lambda: None):
        store.delete("abc")
        told: list[str] = []
        with store.hold("abc", waiting=lambda: told.append("waits")):  # a new lock: the old one lies nowhere any more
            assert not told
    assert store.list_keys() == ()


def test_what_no_run_has_used_for_long_is_removed(releases: Path, store: Store) -> None:
    assert main(["env", "create", "trainer==1.0", "--name", "old"]) == 0
    assert main(["env", "create", "trainer==2.0", "--name", "new"]) == 0
    built = store.find("old").built
    assert built is not None
    week_ago = time.time() - 7 * 86_400
    os.utime(store.directory(built.key) / "used", (week_ago, week_ago))
    assert main(["env", "remove", "--unused-for", "6"]) == 0
    assert store.list_names() == ("new",)
    assert len(store.list_keys()) == 1


def test_a_build_that_was_broken_off_is_gone_on_with(releases: Path, store: Store) -> None:
    assert main(["env", "create", "trainer==1.0", "--name", "whole"]) == 0
    built = store.find("whole").built
    assert built is not None
    folder = store.directory(built.key)
    (folder / "environment.json").unlink()
    site = next(folder.glob("lib/python*/site-packages"))
    helper = (site / "helper.py").stat().st_mtime_ns
    (site / "trainer.py").unlink()
    for file in (site / "trainer-1.0.dist-info").iterdir():
        file.unlink()
    (site / "trainer-1.0.dist-info").rmdir()
    with pytest.raises(BadRequest, match="whole is gone or half built; run plumbline env create again"):
        store.find("whole")
    assert main(["env", "create", "trainer==1.0", "--name", "whole"]) == 0
    assert store.find("whole").built is not None
    assert (site / "trainer.py").exists()
    assert (site / "helper.py").stat().st_mtime_ns == helper  # what was installed stays


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["trainer"], "framework: 'trainer' is not one release; name it as trainer==VERSION."),
        (["trainer>=1"], "framework: 'trainer>=1' is not one release"),
        (["trainer==1.*"], "framework: 'trainer==1.*' is not one release"),
        (["tr ainer=1"], "framework: 'tr ainer=1' is not a requirement"),
        (["trainer==1.0", "--with", "a b"], "with: 'a b' is not a requirement"),
        (["trainer==1.0", "--python", "2.7"], "python: '2.7' is not a version of Python; write it as 3."),
        (["trainer==1.0", "--python", "3.99"], "python: there is no python3.99 on the path"),
        (["trainer==1.0", "--name", "../up"], "name: '../up' is not a name"),
        (["trainer==9.0"], "a version that satisfies the requirement trainer==9.0 (the newest are 1.0, 2.0, 3.0)"),
        (["trainer==2.0", "--with", "helper<2"], "these package versions have conflicting dependencies"),
        (
            ["trainer==3.0"],
            "trainer is installed and cannot be imported: ModuleNotFoundError: No module named 'missing'",
        ),
    ],
)
def test_what_cannot_be_built_is_said_in_a_sentence(
    releases: Path, store: Store, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main(["env", "create", *arguments]) == 3
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].startswith("plumbline: ")
    assert told in captured.err
    assert store.list_names() == ()


def test_the_line_that_says_why_is_found_in_pips_output() -> None:
    many = ", ".join(f"0.{number}" for number in range(40))
    none = f"ERROR: Could not find a version that satisfies the requirement a==9 (from versions: {many})"
    assert find_reason([none, "ERROR: No matching distribution found for a==9"]) == (
        "Could not find a version that satisfies the requirement a==9 (the newest are 0.37, 0.38, 0.39)"
    )
    warned = "WARNING: Retrying (Retry(total=0)) after connection broken by '"
    away = (
        f"{warned}NewConnectionError('<c>: Failed to establish a new connection: [Errno 111] Connection refused')': /a/"
    )
    slow = f"{warned}ReadTimeoutError(\"Pool(host='i', port=443): Read timed out. (read timeout=15)\")': /simple/a/"
    assert find_reason([away, none]).startswith(
        "an index was not reached (Connection refused): Could not find a version"
    )
    assert find_reason([slow, none]).startswith("an index was not reached (Read timed out): Could not find a version")
    built = [
        "  error: subprocess-exited-with-error",
        "      RuntimeError: nvcc was not found",
        "      [end of output]",
        "ERROR: Failed building wheel for a",
        "ERROR: Failed building wheel for b",
    ]
    assert find_reason(built) == "RuntimeError: nvcc was not found"
    assert find_reason(["Killed"]) == "Killed"
    assert find_reason([]) == "it said nothing"


def test_someone_elses_python_is_named_and_used(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "add", "mine", "--python", sys.executable]) == 0
    assert main(["env", "check", "mine"]) == 0
    assert capsys.readouterr().out.endswith("mine: runs\n")
    before = framework_python()
    with running_in("mine", store=store):
        assert framework_python() == str(Path(sys.executable).absolute())
    assert framework_python() == before
    capsys.readouterr()
    assert main(["env", "add", "mine", "--python", sys.executable]) == 0
    assert " before" not in capsys.readouterr().out  # the same
    assert main(["env", "add", "not", "--python", "/nowhere/python"]) == 3
    assert "python: /nowhere/python does not run" in capsys.readouterr().err
    assert main(["env", "remove", "not"]) == 3
    assert "there is no environment 'not'; use one of mine." in capsys.readouterr().err


def test_a_name_that_meant_something_else_is_told(
    releases: Path, store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    assert main(["env", "add", "mine", "--python", str(other)]) == 0
    assert main(["env", "create", "trainer==1.0", "--name", "mine"]) == 0
    assert capsys.readouterr().out.endswith(f"\nmine meant the Python at {other} before\n")
    built = store.find("mine").built
    assert built is not None
    assert main(["env", "create", "trainer==1.0", "--name", "mine"]) == 0
    assert " before" not in capsys.readouterr().out
    assert main(["env", "create", "trainer==2.0", "--name", "mine"]) == 0
    assert capsys.readouterr().out.endswith(f"\nmine meant trainer==1.0 ({built.key}) before\n")
    assert main(["env", "add", "mine", "--python", str(other)]) == 0
    assert "\nmine meant trainer==2.0 (" in capsys.readouterr().out


@pytest.mark.parametrize("days", ["-1", "nan", "inf", "long"])
def test_days_that_are_no_number_of_days_remove_nothing(
    days: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.directory("half").mkdir(parents=True)
    with pytest.raises(SystemExit) as ending:
        main(["env", "remove", "--unused-for", days])
    assert ending.value.code == 3
    assert f"argument --unused-for: '{days}' is not a number, 0 or more" in capsys.readouterr().err
    assert store.list_keys() == ("half",)


def test_a_second_builder_waits_and_says_so(releases: Path, store: Store) -> None:
    wish = parse_wish("trainer==1.0", [])
    assert wish.name == "trainer-1.0"
    version = ".".join(map(str, sys.version_info[:3]))
    key = make_key(python=version, packages=("helper==2.5", "trainer==1.0"))
    with store.hold(key, waiting=lambda: None):
        second = subprocess.Popen(
            [sys.executable, "-m", "workers.cli", "env", "create", "trainer==1.0"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert second.stderr is not None
        lines = []
        for line in second.stderr:
            lines.append(line)
            if "waiting" in line:
                break
        assert f"waiting: {key} is being built by another process" in lines[-1]
        assert not python_of(store.directory(key)).exists()
    assert second.wait(timeout=120) == 0
    assert store.read(key) is not None


def test_an_interrupted_build_leaves_no_process_and_no_name(releases: Path, store: Store) -> None:
    write_slow_release(releases)
    building = subprocess.Popen(
        [sys.executable, "-m", "workers.cli", "env", "create", "slow==1.0"], stderr=subprocess.PIPE, text=True
    )
    marker = releases / "building"
    end = time.monotonic() + 120
    while not marker.exists():
        assert time.monotonic() < end
        assert building.poll() is None
        time.sleep(0.05)
    builder = int(marker.read_text())
    building.send_signal(signal.SIGINT)
    assert building.wait(timeout=60) == 130
    end = time.monotonic() + 10
    while Path(f"/proc/{builder}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{builder}").exists()
    assert store.list_names() == ()


def write_slow_release(folder: Path) -> None:
    """A source release whose build says its process number and then sleeps."""
    import tarfile

    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": (
            "import os, pathlib, time\n"
            "def get_requires_for_build_wheel(config_settings=None): return []\n"
            "def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):\n"
            f"    path = pathlib.Path({str(folder / 'building')!r})\n"
            "    path.with_suffix('.tmp').write_text(str(os.getpid())); path.with_suffix('.tmp').rename(path)\n"
            "    time.sleep(300)\n"
            "def build_wheel(*arguments, **options): raise SystemExit(1)\n"
        ),
        "PKG-INFO": "Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n",
    }
    source = folder / "source"
    source.mkdir()
    with tarfile.open(folder / "slow-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            (source / name).write_text(text)
            archive.add(source / name, arcname=f"slow-1.0/{name}")


def test_validating_in_several_environments_needs_this_machine(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["validate", "--framework", "transformers", "--model", "tiny:qwen3", "--data", "gsm8k_sample"]
    assert main([*asked, "--env", "one"]) == 3
    assert "env: environments are of one machine; add --local." in capsys.readouterr().err
    assert main([*asked, "--local", "--env", "one"]) == 3
    assert "there is no environment 'one'; make one with plumbline env create." in capsys.readouterr().err
    names = store.path / "names"
    names.mkdir(parents=True)
    (names / "one.json").write_text(json.dumps({"key": "0" * 12}))
    assert main([*asked, "--local", "--env", "one"]) == 3
    assert "one is gone or half built" in capsys.readouterr().err
