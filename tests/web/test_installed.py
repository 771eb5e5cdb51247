"""Which interpreter a framework runs in, what it has, and in which order frameworks are offered."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from plumbline_web.catalog.installed import get_environment, get_framework, interpreter_of, list_frameworks
from plumbline_web.catalog.models import Framework
from workers.frameworks.interpreter import VARIABLE

pytestmark = pytest.mark.django_db

OTHER = ["3.12.9", {"ms-swift": "4.6.0", "torch": "2.12.0"}]


@pytest.fixture
def other_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that says of itself what another environment's would."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho warning\necho '{json.dumps(OTHER)}'\n")
    python.chmod(0o755)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv(f"{VARIABLE}_MS_SWIFT", str(python))


@pytest.mark.usefixtures("other_python")
def test_a_framework_of_another_environment_has_that_one_s_versions() -> None:
    environment = get_environment(get_framework("ms_swift"))
    assert (environment.python, environment.version) == ("3.12.9", "4.6.0")
    assert environment.packages == {"ms-swift": "4.6.0", "torch": "2.12.0"}
    here = get_environment(get_framework("trl"))
    assert (here.python, here.version) == (platform.python_version(), version("trl"))


@pytest.mark.usefixtures("other_python")
def test_what_is_installed_is_offered_first() -> None:
    offered = [each.name for each in list_frameworks()]
    lacking = ["megatron_core", "megatron_swift", "miles", "automodel"]
    assert offered == ["transformers", "ms_swift", "plain", "trl", "command", *lacking]


def test_a_python_that_does_not_answer_is_taken_for_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv(VARIABLE, str(python))
    assert interpreter_of("trl").packages["trl"] == version("trl")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    assert interpreter_of("trl").packages["trl"] == version("trl")


def test_a_row_that_knew_an_adapter_by_its_name_alone_gets_its_title() -> None:
    Framework.objects.create(name="ms_swift", title="ms_swift", package="ms_swift")
    assert {each.name: each.title for each in list_frameworks()}["ms_swift"] == "ms-swift"
    row = Framework.objects.get(name="ms_swift")
    assert (row.title, row.package) == ("ms-swift", "ms-swift")
