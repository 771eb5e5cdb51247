"""What the process runs on, and the state of its random number generators. Reading either changes nothing."""

from __future__ import annotations

import hashlib
import os
import platform
import random
import re
import sys
from pathlib import Path
from typing import Any, Dict, Optional

import torch

_METADATA_DIRECTORY = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(-py\d[^-]*)?\.(dist|egg)-info")


def describe_environment() -> Dict[str, Any]:
    """Return the manifest's `environment` of this process."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": installed_packages(),
        "hardware": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "memory_bytes": _memory_bytes(),
            "gpus": _gpu_names(),
        },
        "torch": {
            "version": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "matmul_precision": torch.get_float32_matmul_precision(),
        },
    }


def installed_packages() -> Dict[str, str]:
    """Return name → version of the distributions on this process's path.

    Read from the names of their metadata directories (https://packaging.python.org/en/latest/specifications/
    recording-installed-packages/), a hundredth of the time that opening their metadata takes.
    """
    packages: Dict[str, str] = {}
    for directory in sys.path:
        try:
            names = os.listdir(directory or os.curdir)
        except OSError:
            continue
        for name in names:
            match = _METADATA_DIRECTORY.fullmatch(name)
            if match is not None:
                normalized = re.sub(r"[-_.]+", "-", match["name"]).lower()
                packages.setdefault(normalized, match["version"])
    return dict(sorted(packages.items()))


def describe_rng() -> Dict[str, Optional[str]]:
    """Return the SHA-256 of each generator's state; None where it is not in use in this process."""
    numpy: Any = sys.modules.get("numpy")
    cuda = torch.cuda.get_rng_state() if cuda_in_use() else None
    return {
        "python": _sha256(repr(random.getstate()).encode()),
        "numpy": None if numpy is None else _sha256(_numpy_state(numpy)),
        "torch": _sha256(bytes(torch.get_rng_state().tolist())),
        "cuda": None if cuda is None else _sha256(bytes(cuda.tolist())),
    }


def _numpy_state(numpy: Any) -> bytes:
    algorithm, keys, position, has_gauss, cached_gaussian = numpy.random.get_state()
    return repr((algorithm, position, has_gauss, cached_gaussian)).encode() + bytes(keys.tobytes())


def cuda_in_use() -> bool:
    """Return whether this process uses CUDA already; asking for more would initialise the driver."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:  # not Linux
        return platform.processor()
    return platform.processor()


def _memory_bytes() -> Optional[int]:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # a system that does not say
        return None


def _gpu_names() -> list[str]:
    if not cuda_in_use():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
