"""Run specs on the tiny model and the shipped samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from checks.models import resolve_model
from checks.samples import resolve_data
from checks.spec import RunSpec

MakeSpec = Callable[..., RunSpec]


@pytest.fixture(autouse=True, scope="session")
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    shared = tmp_path_factory.getbasetemp().parent / "model-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared))
        yield


@pytest.fixture(scope="session")
def make_spec(_shared_cache: None) -> MakeSpec:
    def make(
        framework: str = "transformers", *, model: str = "tiny:qwen3", data: str = "gsm8k_sample", **changes: Any
    ) -> RunSpec:
        return RunSpec(framework, resolve_model(model).path, resolve_data(data), **changes)

    return make
