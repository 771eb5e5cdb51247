"""What tracing a step costs, from a config's sizes whatever a family calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.references.budget import estimate_trace_bytes


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3},
        {"text_config": {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3}},
        {"n_embd": 64, "n_inner": None, "n_layer": 3},
    ],
)
def test_a_size_is_found_under_the_name_that_its_family_gives_it(tmp_path: Path, config: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert estimate_trace_bytes(tmp_path, tokens=10) == 10 * 3 * (14 * 64 + 5 * 256) * 3 * 4
