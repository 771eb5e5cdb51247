"""What every test shares: one thread, no network, and a cache of tiny models that no home directory sees."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from django.conf import settings

from tests.isolation import take_own_part
from tests.services import start_services
from workers.frameworks.interpreter import VARIABLE
from workers.jobs import computer

if (worker := os.environ.get("PYTEST_XDIST_WORKER")) is None:
    start_services()  # before Django reads its settings; the workers inherit the addresses
else:
    take_own_part(worker)
os.environ["DJANGO_SETTINGS_MODULE"] = "plumbline_web.settings"

django.setup()
# A password hash is made slow to guess; here there is nothing to guess.
settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import torch  # noqa: E402  # the settings above are read at import

torch.set_num_threads(1)


def pytest_xdist_setupnodes() -> None:
    """A worker that inherits the name has pytest-django read the settings before the worker takes its own part."""
    del os.environ["DJANGO_SETTINGS_MODULE"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of services: a few files take minutes, and one that comes last leaves a worker idle."""
    items.sort(key=lambda item: item.path.parent.name not in ("web", "workers"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of this run have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(autouse=True, scope="session")
def _warm_computers() -> Iterator[None]:
    """A computing process begins with torch loaded, as a framework's does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computer, "PYTHON", os.environ[VARIABLE])
        yield


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start frameworks and computing processes as a user's worker does, by an interpreter that has nothing loaded."""
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(computer, "PYTHON", sys.executable)


@pytest.fixture(autouse=True, scope="session")
def _shared_cache(shared: Path) -> Iterator[None]:
    """A tiny family is built once a run, whichever worker asks first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared / "model-cache"))
        yield
