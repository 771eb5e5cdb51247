"""Run specs on the tiny model and the shipped samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from checks.models import resolve_model
from checks.samples import resolve_data
from checks.spec import RunSpec

MakeSpec = Callable[..., RunSpec]


@pytest.fixture(scope="session")
def make_spec(_shared_cache: None) -> MakeSpec:
    def make(
        framework: str = "transformers", *, model: str = "tiny:qwen3", data: str = "gsm8k_sample", **changes: Any
    ) -> RunSpec:
        return RunSpec(framework, resolve_model(model).path, resolve_data(data), **changes)

    return make
