"""Train with Megatron-SWIFT as one JSON file says: `python train.py config.json`.

The file's `arguments` are those of `megatron sft`. Runs in the framework's environment and imports nothing of
Plumbline.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch

WITHOUT_GPU = {
    "ddp_backend": "gloo",
    "masked_softmax_fusion": False,
    "bias_dropout_fusion": False,
    "bias_activation_fusion": False,
    "gradient_accumulation_fusion": False,
    "cross_entropy_loss_fusion": False,
}
"""kernels that are compiled for, or by, a GPU's toolchain"""


def main(path: str) -> None:
    """Read the configuration, write the rows as ms-swift reads them, and train."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    if not torch.cuda.is_available():
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # Megatron compiles small functions, which takes a C++ compiler
    if "RANK" not in os.environ:
        be_alone()
    swift: Any = importlib.import_module("swift.megatron")
    rows = Path(path).with_name(f"swift_rows-{os.environ['RANK']}.jsonl")
    lines = Path(config["rows"]).read_text(encoding="utf-8").split("\n")
    converted = [json.dumps(convert(json.loads(line)), ensure_ascii=False) for line in lines if line]
    rows.write_text("\n".join(converted) + "\n", encoding="utf-8")
    arguments = {
        "model": config["model"],
        "model_type": find_model_type(Path(config["model"])),
        "dataset": [str(rows)],
        **({} if torch.cuda.is_available() else WITHOUT_GPU),
        **config["arguments"],
    }
    if "resume_from" in config:
        arguments |= {"mcore_model": config["resume_from"], "finetune": False}
    swift.megatron_sft_main(write_arguments(arguments))


def be_alone() -> None:
    """State what torchrun states, for one process: Megatron's groups are made of ranks in any case."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})


def convert(row: dict[str, Any]) -> dict[str, Any]:
    """A row as ms-swift documents it: turns, the last of which is the answer."""
    if "messages" in row:
        return row
    if "text" in row:
        return {"messages": [{"role": "assistant", "content": row["text"]}]}
    turns = [{"role": "user", "content": row["prompt"]}]
    return {"messages": [*turns, {"role": "assistant", "content": row["completion"]}]}


def find_model_type(model: Path) -> str:
    """What ms-swift calls the model: several of its names share a class, and the one of the config comes first."""
    meta: Any = importlib.import_module("swift.model.model_meta")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    found = meta.get_matched_model_types(config["architectures"])
    if not found:
        raise SystemExit(f"ms-swift knows no model of {', '.join(config['architectures'])}")
    return str(config["model_type"] if config["model_type"] in found else found[0])


def write_arguments(arguments: dict[str, Any]) -> list[str]:
    """Options and their values, as on a command line."""
    written: list[str] = []
    for name, value in arguments.items():
        values = value if isinstance(value, list) else [value]
        written += [f"--{name}", *(item if isinstance(item, str) else json.dumps(item) for item in values)]
    return written


if __name__ == "__main__":
    main(sys.argv[1])
