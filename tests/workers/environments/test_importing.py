"""Importing what an environment was built for: as it is, on a stand-in, or not for want of what was left out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from checks.errors import BadRequest
from workers.environments.importing import Imported, try_imports
from workers.environments.recipes import LeftOut

ENGINE = LeftOut("transformer-engine", "kernels for a GPU")
ASKED = ("trainer==1.0", "mcore_bridge==1.6.5", "helper==2")
SHIM = """
import sys, types
REPLACES = ("transformer_engine.pytorch",)
def install():
    sys.modules["transformer_engine"] = types.ModuleType("transformer_engine")
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two importable modules, of which one needs what is not there; `helper` is nobody's framework."""
    (tmp_path / "trainer.py").write_text("")
    (tmp_path / "mcore_bridge.py").write_text("import transformer_engine\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("PLUMBLINE_SHIMS", raising=False)
    return tmp_path


@pytest.mark.usefixtures("modules")
def test_what_was_left_out_on_purpose_is_said_and_is_no_fault() -> None:
    first, second = try_imports(sys.executable, ASKED, left_out=(ENGINE,))
    assert first == Imported("trainer")
    assert first.sentence == ""
    assert second == Imported("mcore-bridge", lacks=ENGINE)
    assert second.sentence == (
        "mcore-bridge does not import without transformer-engine, which was left out (kernels for a GPU): on this "
        "machine it runs only on a stand-in that PLUMBLINE_SHIMS names"
    )


def test_a_stand_in_is_tried_and_named(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = modules / "engine.py"
    shim.write_text(SHIM)
    monkeypatch.setenv("PLUMBLINE_SHIMS", str(shim))
    _, second = try_imports(sys.executable, ASKED, left_out=(ENGINE,))
    assert second == Imported("mcore-bridge", stand_ins=("transformer_engine.pytorch",))
    assert "imports on the stand-in for transformer_engine.pytorch" in second.sentence
    (modules / "mcore_bridge.py").write_text("import transformer_engine, triton_of_nobody\n")
    with pytest.raises(BadRequest, match=r"mcore-bridge is installed and cannot be imported: .*triton_of_nobody"):
        try_imports(sys.executable, ASKED, left_out=(ENGINE,))


@pytest.mark.usefixtures("modules")
def test_what_was_not_left_out_and_is_missing_is_refused() -> None:
    with pytest.raises(BadRequest, match="No module named 'transformer_engine'"):
        try_imports(sys.executable, ASKED, left_out=())
