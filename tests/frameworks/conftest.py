"""Run specs on the tiny model and the shipped samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.models import resolve_model
from checks.samples import resolve_data
from checks.spec import RunSpec

MakeSpec = Callable[..., RunSpec]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of this run have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(autouse=True, scope="session")
def _shared_cache(shared: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared / "model-cache"))
        yield


@pytest.fixture(scope="session")
def make_spec(_shared_cache: None) -> MakeSpec:
    def make(
        framework: str = "transformers", *, model: str = "tiny:qwen3", data: str = "gsm8k_sample", **changes: Any
    ) -> RunSpec:
        return RunSpec(framework, resolve_model(model).path, resolve_data(data), **changes)

    return make
