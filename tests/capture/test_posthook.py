"""Callbacks after an import: once, after the module is complete, and not before it is really imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest
from plumbline_capture.posthook import after_import


@pytest.fixture
def late_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"late_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_probe_with_find_spec_does_not_use_the_callback_up(late_module: str) -> None:
    seen: list[int] = []
    after_import(late_module, lambda module: seen.append(module.value))
    assert importlib.util.find_spec(late_module) is not None
    assert importlib.util.find_spec(late_module) is not None
    assert seen == []
    importlib.import_module(late_module)
    assert seen == [1]
    importlib.reload(sys.modules[late_module])
    assert seen == [1]


def test_callbacks_run_in_order_and_may_register_another_for_the_same_module(late_module: str) -> None:
    seen: list[str] = []
    after_import(late_module, lambda _: seen.append("first"))
    after_import(late_module, lambda _: after_import(late_module, lambda _: seen.append("third")))
    after_import(late_module, lambda _: seen.append("second"))
    importlib.import_module(late_module)
    assert seen == ["first", "second", "third"]


def test_a_module_that_is_imported_already_calls_back_at_once(late_module: str) -> None:
    importlib.import_module(late_module)
    seen: list[int] = []
    after_import(late_module, lambda module: seen.append(module.value))
    assert seen == [1]


def test_an_exception_of_the_callback_leaves_the_import_statement(late_module: str) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("not this one")

    after_import(late_module, refuse)
    with pytest.raises(RuntimeError, match="not this one"):
        importlib.import_module(late_module)


def test_a_module_that_does_not_exist_is_still_not_found() -> None:
    after_import("no_such_module_at_all", print)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_at_all")
