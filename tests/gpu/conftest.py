"""Tests that are marked gpu are skipped, with the reason, where torch sees no CUDA device."""

from __future__ import annotations

import os

import pytest

# Deterministic matrix products need it before CUDA is initialised
# (https://docs.nvidia.com/cuda/cublas/#results-reproducibility).
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # the setting above is read at its first matrix product


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device on this machine")
