"""Adapters to the frameworks under test: one folder each, with the driver that runs in the framework's environment."""

from __future__ import annotations

from workers.frameworks.base import Adapter, Launch
from workers.frameworks.registry import adapter, names
from workers.frameworks.requests import default_settings

__all__ = ["Adapter", "Launch", "adapter", "default_settings", "names"]
