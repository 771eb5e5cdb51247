"""Releases that another environment holds are linked into a new one."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from workers.environments.sharing import link_packages
from workers.environments.store import Built, Store, python_of

SITE = Path(sysconfig.get_path("purelib", vars={"base": ""})).relative_to("/")
"""`lib/python3.x/site-packages`"""


def make(store: Store, key: str, packages: dict[str, str], *, python: str = "3.11.7", whole: bool = True) -> Path:
    """An environment as pip leaves it: a module, what Python compiled of it, a script and the list of both."""
    folder = store.directory(key)
    site = folder / SITE
    (folder / "bin").mkdir(parents=True)
    for name, version in packages.items():
        information = site / f"{name}-{version}.dist-info"
        information.mkdir(parents=True)
        (site / "__pycache__").mkdir(exist_ok=True)
        (site / f"{name}.py").write_text(f"VERSION = {version!r}\n")
        (site / "__pycache__" / f"{name}.cpython-311.pyc").write_bytes(b"compiled")
        (folder / "bin" / name).write_text(f"#!{python_of(folder)}\nimport {name}\n")
        (folder / "bin" / name).chmod(0o755)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        listed = (f"{name}.py", f"{information.name}/METADATA", f"{information.name}/RECORD", f"../../../bin/{name}")
        (information / "RECORD").write_text("".join(f"{file},,\n" for file in listed))
    if whole:
        pinned = tuple(f"{name}=={version}" for name, version in packages.items())
        store.complete(Built(key, pinned, python, pinned, "2026-01-01T00:00:00+00:00", 0))
    return folder


def bare(store: Store) -> Path:
    folder = store.directory("new")
    (folder / SITE).mkdir(parents=True)
    return folder


def test_the_same_release_is_linked_with_what_was_compiled_of_it_and_a_script_names_its_own_python(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    old = make(store, "old", {"helper": "2.5", "trainer": "1.0"})
    new = bare(store)
    wanted = ["helper==2.5", "trainer==2.0", "other @ file:///other.whl"]
    assert link_packages(new, packages=wanted, python="3.11.7", store=store) == ("helper==2.5",)
    for file in ("helper.py", "__pycache__/helper.cpython-311.pyc", "helper-2.5.dist-info/RECORD"):
        assert os.path.samefile(old / SITE / file, new / SITE / file)
    assert not (new / SITE / "trainer.py").exists()
    assert (new / "bin" / "helper").read_text() == f"#!{python_of(new)}\nimport helper\n"
    assert os.access(new / "bin" / "helper", os.X_OK)
    assert (old / "bin" / "helper").read_text() == f"#!{python_of(old)}\nimport helper\n"
    # It is another environment's as well: what goes from one stays in the other.
    store.delete("old")
    assert (new / SITE / "helper.py").read_text() == "VERSION = '2.5'\n"


@pytest.mark.parametrize("fault", ["another python", "half built", "not listed", "a file is gone"])
def test_what_cannot_be_trusted_is_left_to_pip(tmp_path: Path, fault: str) -> None:
    store = Store(tmp_path)
    old = make(store, "old", {"helper": "2.5"}, whole=fault != "half built")
    if fault == "another python":
        built = store.read("old")
        assert built is not None
        store.complete(replace(built, python="3.12.1"))
    if fault == "not listed":
        (old / SITE / "helper-2.5.dist-info" / "RECORD").unlink()
    if fault == "a file is gone":
        (old / SITE / "helper.py").unlink()
    assert link_packages(bare(store), packages=["helper==2.5"], python="3.11.7", store=store) == ()


def test_where_there_are_no_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    old = make(store, "old", {"helper": "2.5"})

    def refuse(source: object, target: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    new = bare(store)
    assert link_packages(new, packages=["helper==2.5"], python="3.11.7", store=store) == ("helper==2.5",)
    assert not os.path.samefile(old / SITE / "helper.py", new / SITE / "helper.py")
    assert (new / SITE / "helper.py").read_bytes() == (old / SITE / "helper.py").read_bytes()
