"""Which build of torch: without a GPU that of a CPU, which takes a tenth of the disk of what pip brings on Linux."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from checks.errors import BadRequest

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds; the public package index has none for Linux on x86."""

TRIED = 3
"""Builds that are held against everything else that was asked for, before the GPU's is taken after all."""

_AVAILABLE = re.compile(r"^Available versions: (?P<all>.+)$", re.MULTILINE)
_GPU_LIBRARIES = ("nvidia-", "cuda-", "rocm")


def is_for_gpu(installed: dict[str, Any]) -> bool:
    """Whether a distribution of pip's report is a build of torch that brings a GPU's libraries."""
    if canonicalize_name(str(installed["metadata"]["name"])) != "torch":
        return False
    needs = (Requirement(text) for text in installed["metadata"].get("requires_dist", ()))
    return any(
        canonicalize_name(need.name).startswith(_GPU_LIBRARIES)
        and (need.marker is None or need.marker.evaluate({"extra": ""}))
        for need in needs
    )


def holds_gpu_libraries(packages: Sequence[str]) -> bool:
    """Whether a list of pinned packages holds what a build of torch for a GPU brings."""
    return any(package.startswith(_GPU_LIBRARIES) for package in packages)


def find_cpu_builds(
    release: str, *, index: Sequence[str], run: Callable[[Sequence[str]], str]
) -> Iterator[tuple[str, list[str]]]:
    """Versions of torch's CPU builds, each with pip's options that find it: those of `release` first, then the newest.

    They come from where releases come from anyway; only where that has none, and nobody named an index, from PyTorch's.

    Args:
        release: the version that pip took of itself.
        index: options of pip that say where releases come from.
        run: runs pip with arguments and returns what it printed; raises BadRequest where it fails.
    """
    places: list[list[str]] = [[]]
    if not index:
        places.append(["--extra-index-url", CPU_INDEX])
    for more in places:
        # An index that is not reached is asked once and briefly: the build for a GPU works without one too.
        patience = ["--retries", "0", "--timeout", "15"] if more else []
        try:
            printed = run(["index", "versions", "torch", *index, *more, *patience])
        except BadRequest:
            continue
        found = _AVAILABLE.search(printed)
        versions = [Version(text.strip()) for text in found["all"].split(",")] if found else []
        builds = sorted((each for each in versions if each.local == "cpu"), reverse=True)
        builds.sort(key=lambda each: each.public != Version(release).public)
        if builds:
            yield from ((str(build), more) for build in builds[:TRIED])
            return
