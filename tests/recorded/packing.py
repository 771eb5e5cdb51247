"""Make a fixture of a real run: `python -m tests.recorded.packing RESULT.json CASE [CHECK …] [GRADIENTS]`.

RESULT.json is what `plumbline validate --local --out DIR --json RESULT.json` wrote beside DIR. Of its captures the
first step is kept, and of that what the judges of the batch, the loss and the gradients read; paths of the machine are
taken out. The fixture is CASE.tar.xz with CASE.json beside it: the request, and the verdict of each CHECK.
GRADIENTS, written as /regular expression/, leaves out the gradients whose names it is not found in.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save

STEP = 1
KINDS = {
    "batch": ("full",),
    "loss_input": ("full",),
    "rollout": ("full",),
    "target": ("full",),
    "token_loss": ("full",),
    "next_token": ("full",),
    "gradient": ("sketch", "row_norms"),
}
"""of each kind of tensor, the representations that are kept"""

OF_VALUES = frozenset({"step.gradients", "parallel.gradients"})
"""checks that read the values of gradients: for others their norms are kept alone"""
NORMS = ("row_norms",)

ROLES = ("run", "single")
PATH = re.compile(r"/(?:work|tmp|root|home)/[^\s\"',:]*")
ROOT = Path(__file__).parent
DEFAULT_CHECKS = ("data.template", "data.mask", "step.loss", "step.denominator", "step.gradients")


def pack(result: Path, case: Path, checks: tuple[str, ...], *, gradients: str = "") -> None:
    """Write both files of a fixture."""
    content = json.loads(result.read_text(encoding="utf-8"))
    verdicts = {verdict["check"]: verdict["status"] for verdict in content["verdicts"]}
    request = {name: content["request"][name] for name in ("framework", "model", "data", "settings")}
    packages = {name: content["environment"][name] for name in sorted(content["environment"]) if name != "platform"}
    kinds = KINDS if OF_VALUES & set(checks) else {**KINDS, "gradient": NORMS}
    case.parent.mkdir(parents=True, exist_ok=True)
    captures = Path(content["request"]["out"]) / "captures"
    with tarfile.open(f"{case}.tar.xz", "w:xz") as archive:
        for role in ROLES:
            if (captures / role).is_dir():
                for name, data in shorten(captures / role, kinds, gradients=gradients):
                    entry = tarfile.TarInfo(f"{role}/{name}")
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
    described = {
        "recorded": content["created"],
        "request": request,
        "packages": packages,
        "verdicts": {name: verdicts[name] for name in checks},
    }
    Path(f"{case}.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def shorten(directory: Path, kinds: Mapping[str, tuple[str, ...]], *, gradients: str) -> list[tuple[str, bytes]]:
    """The files of a capture, without what is not kept."""
    manifest = json.loads(directory.joinpath("manifest.json").read_text(encoding="utf-8"))
    tensors: list[dict[str, Any]] = []
    stored: dict[str, set[str]] = {}
    for entry in manifest["tensors"]:
        wanted = kinds.get(entry["kind"], ()) if entry["step"] == STEP else ()
        kept = {name: key for name, key in entry["representations"].items() if name in wanted}
        if not kept and wanted == NORMS:  # a vector has no rows
            kept = {name: key for name, key in entry["representations"].items() if name in KINDS[entry["kind"]]}
        left_out = entry["kind"] == "gradient" and not re.search(gradients, entry["name"])
        if kept and not left_out:
            tensors.append({**entry, "representations": kept})
            stored.setdefault(entry["file"], set()).update(kept.values())
    files: list[tuple[str, bytes]] = []
    for name, keys in stored.items():
        read = load_file(directory / name)
        files.append((name, save({key: read[key] for key in sorted(keys)})))
    manifest |= {"tensors": tensors, "command": [], "checkpoints": [], "exports": []}
    manifest["files"] = [{"path": name, "bytes": len(data)} for name, data in files]
    for rank in manifest["ranks"]:
        rank["steps"] = [step for step in rank["steps"] if step["step"] == STEP]
    return [("manifest.json", json.dumps(scrub(manifest)).encode()), *files]


def scrub(value: Any) -> Any:
    """The same content with paths of the machine reduced to their last part."""
    if isinstance(value, dict):
        return {name: scrub(item) for name, item in value.items()}
    if isinstance(value, list):
        return [scrub(item) for item in value]
    return PATH.sub(lambda found: Path(found.group()).name, value) if isinstance(value, str) else value


if __name__ == "__main__":
    named = [argument for argument in sys.argv[3:] if not argument.startswith("/")]
    pattern = next((argument.strip("/") for argument in sys.argv[3:] if argument.startswith("/")), "")
    pack(Path(sys.argv[1]), ROOT / sys.argv[2], tuple(named) or DEFAULT_CHECKS, gradients=pattern)
