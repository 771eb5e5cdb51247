"""Train with ms-swift as one JSON file says: `python train.py config.json`.

The file's `arguments` are those of `swift sft` and `swift rlhf`. Runs in the framework's environment and imports
nothing of Plumbline.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from swift import rlhf_main, sft_main
from swift.model.model_meta import get_matched_model_types

GENERATION = "generation_config.json"


def main(path: str) -> None:
    """Read the configuration, write the rows as ms-swift reads them, and train."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    lines = Path(config["rows"]).read_text(encoding="utf-8").split("\n")
    converted = [json.dumps(convert(json.loads(line)), ensure_ascii=False) for line in lines if line]
    model = config["model"]
    if "stop_every" in config:
        model = end_at_many_tokens(Path(model), Path(path).with_name("model"), every=config["stop_every"])
    arguments = {
        "model": model,
        "model_type": find_model_type(Path(config["model"])),
        "dataset": write_rows(Path(path).with_name(f"{Path(path).stem}-rows.jsonl"), converted),
        "use_cpu": not torch.cuda.is_available(),
        **config["arguments"],
    }
    if "evaluated_rows" in config:
        evaluated = Path(path).with_name(f"{Path(path).stem}-evaluated.jsonl")
        arguments["val_dataset"] = write_rows(evaluated, converted[: config["evaluated_rows"]])
        arguments["eval_strategy"] = "no"  # beside the evaluation before the first step
    if "export" in config:
        arguments |= {"save_strategy": "steps", "save_steps": arguments["max_steps"]}
    if "resume_from" in config:
        arguments["resume_from_checkpoint"] = config["resume_from"]
    result = (sft_main if config["objective"] == "sft" else rlhf_main)(write_arguments(arguments))
    if int(result["global_step"]) < int(arguments["max_steps"]):
        raise SystemExit(f"ms-swift ended after step {result['global_step']} of {arguments['max_steps']}")
    if "export" in config:
        # Its checkpoint of the last step is what ms-swift gives to be served.
        saved = Path(arguments["output_dir"]) / f"checkpoint-{arguments['max_steps']}"
        shutil.copytree(saved, config["export"])


def end_at_many_tokens(model: Path, copy: Path, *, every: int) -> str:
    """Name the checkpoint again, beside a generation_config.json by which every so many-th token ends a completion."""
    copy.mkdir(exist_ok=True)
    for file in model.iterdir():
        if file.name != GENERATION and not (copy / file.name).exists():
            (copy / file.name).symlink_to(file)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    vocabulary = config.get("vocab_size") or config["text_config"]["vocab_size"]
    (copy / GENERATION).write_text(json.dumps({"eos_token_id": list(range(0, vocabulary, every))}), encoding="utf-8")
    return str(copy)


def write_rows(file: Path, rows: list[str]) -> list[str]:
    """Write rows as a data set; its name, as an option takes it."""
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return [str(file)]


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
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    found = get_matched_model_types(config["architectures"])
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
