"""Memory and rate of comparing two captures in full: `python -m benchmarks.compare [--gigabytes 8]`.

The captures are sparse files, so that they need no disk; the bytes are read and computed with all the same. The
comparison runs as a user runs it, `plumbline compare`, in a process of its own whose peak memory and CPU time are
measured."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TENSOR_BYTES = 1 << 30
"""Of each gradient: larger than any buffer of the comparison."""

EMPTY_STEP = {
    "step": 1,
    "model": {"class": "Sparse", "training": True, "parameter_dtypes": {}},
    "scalars": {},
    "trainable": [],
    "frozen": [],
    "micro_batches": [],
    "clips": [],
    "optimizer": {"class": "none", "groups": [], "without_gradient": []},
}


def write_sparse_capture(directory: Path, *, tensors: int) -> None:
    """A capture in the documented format whose gradients are holes in a sparse file."""
    directory.mkdir()
    names = [f"layers.{index}.weight" for index in range(tensors)]
    count = TENSOR_BYTES // 4
    header = {
        f"gradient/{name}": {
            "dtype": "F32",
            "shape": [count],
            "data_offsets": [index * TENSOR_BYTES, (index + 1) * TENSOR_BYTES],
        }
        for index, name in enumerate(names)
    }
    raw = json.dumps(header).encode()
    file = directory / "step00001-rank00000.safetensors"
    with file.open("wb") as stream:
        stream.write(len(raw).to_bytes(8, "little") + raw)
        stream.truncate(8 + len(raw) + tensors * TENSOR_BYTES)
    stats = {"count": count, "mean": 0.0, "rms": 0.0, "norm": 0.0, "min": 0.0, "max": 0.0, "nonfinite": 0}
    entries = [
        {
            "step": 1,
            "rank": 0,
            "micro_batch": None,
            "kind": "gradient",
            "name": name,
            "source_name": name,
            "field": None,
            "dtype": "torch.float32",
            "global_shape": [count],
            "slice": [[0, count]],
            "placement": {},
            "file": file.name,
            "representations": {"full": f"gradient/{name}"},
            "stats": stats,
        }
        for name in names
    ]
    manifest = {
        "format": "plumbline-capture",
        "version": 1,
        "recorder": {"version": "0.1.0", "mode": "full", "steps": [1], "modules": None},
        "command": [],
        "exit_code": 0,
        "world_size": 1,
        "missing": [],
        "environment": {"python": "", "platform": "", "packages": {}, "hardware": {}, "torch": {}},
        "ranks": [{"rank": 0, "local_rank": 0, "pid": 0, "steps": [EMPTY_STEP]}],
        "files": [{"path": file.name, "rank": 0, "step": 1, "bytes": file.stat().st_size, "sha256": ""}],
        "tensors": entries,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=int, default=8, help="of gradients in each capture")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        captures = [Path(folder) / name for name in ("a", "b")]
        for capture in captures:
            write_sparse_capture(capture, tensors=options.gigabytes)
        command = [sys.executable, "-m", "workers.cli", "compare", *map(str, captures)]
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        wall = time.perf_counter() - begin
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    megabytes = options.gigabytes * TENSOR_BYTES / 1e6
    cpu = usage.ru_utime + usage.ru_stime
    print(f"{options.gigabytes} GiB of gradients in each of two captures")
    print(f"peak memory   {usage.ru_maxrss / 1e6:6.2f} GB")
    print(
        f"own rate      {megabytes / usage.ru_utime:6.0f} MB of gradients a second and core, without the kernel's time"
    )
    print(f"rate          {megabytes / cpu:6.0f} MB of gradients a second and core ({2 * megabytes / cpu:.0f} MB read)")
    print(f"wall          {wall:6.1f} s, of it {usage.ru_stime:.1f} s in the kernel, filling sparse pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
