"""A cache of models that the tests of one worker share and that no home directory sees."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # The worker's parent directory is common to all workers of a run: a family is built once a run.
    shared = tmp_path_factory.getbasetemp().parent / "model-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared))
        yield
