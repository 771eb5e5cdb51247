"""Train with `swift sft`, of ms-swift from 4.4 on: `python swift_sft.py config.json`.

The rows are prompts in ChatML with a completion; they are given to ms-swift as the turns that they render, tool turns
as turns of role `tool`. Options of a case: `loss_scale`, `agent_template`.
Runs in the release's own environment and imports nothing of Plumbline.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from swift import sft_main
from swift.template import TemplateMeta, register_template

TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.DOTALL)
TOOL = re.compile(r"<tool_response>\n(.*)\n</tool_response>", re.DOTALL)


def main(path: str) -> None:
    """Read the configuration, write the rows as ms-swift reads them, and train."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    lines = Path(config["rows"]).read_text(encoding="utf-8").split("\n")
    rows = [json.dumps({"messages": convert(json.loads(line))}, ensure_ascii=False) for line in lines if line]
    data = Path(path).with_name("swift-rows.jsonl")
    data.write_text("\n".join(rows) + "\n", encoding="utf-8")
    # ms-swift's chatml ends an answer with a line end, which is no part of it.
    register_template(
        TemplateMeta(
            "bare_chatml",
            prefix=[],
            prompt=["<|im_start|>user\n{{QUERY}}<|im_end|>\n<|im_start|>assistant\n"],
            chat_sep=["<|im_end|>\n"],
            suffix=["<|im_end|>"],
        )
    )
    arguments = {
        **config["arguments"],
        "report_to": "none",
        "model": config["model"],
        "model_type": config["case"]["model_type"],
        "dataset": [str(data)],
        "use_cpu": True,
        "template": "bare_chatml",
        "loss_scale": config["case"]["loss_scale"],
        "agent_template": config["case"]["agent_template"],
        "tuner_type": "full",
        "torch_dtype": "float32",
        "attn_impl": config["attention"],
        "max_length": config["seq_len"],
        "truncation_strategy": "right",
        "split_dataset_ratio": 0.0,
        "add_version": False,
        "create_checkpoint_symlink": False,
        "dataloader_num_workers": 0,
        "dataset_num_proc": 1,
        "load_from_cache_file": False,
        "check_model": False,
    }
    sft_main(write_arguments(arguments))


def convert(row: dict[str, Any]) -> list[dict[str, str]]:
    """The turns of a prompt in ChatML and its completion."""
    turns = []
    for role, content in TURN.findall(row["prompt"]):
        tool = TOOL.fullmatch(content)
        turns.append({"role": "tool", "content": tool[1]} if tool else {"role": role, "content": content})
    return [*turns, {"role": "assistant", "content": row["completion"]}]


def write_arguments(arguments: dict[str, Any]) -> list[str]:
    """As an argument list."""
    written: list[str] = []
    for name, value in arguments.items():
        if value is None or value == []:
            continue
        values = value if isinstance(value, list) else [value]
        texts = [json.dumps(each) if isinstance(each, bool | dict) else str(each) for each in values]
        written += [f"--{name}", *texts]
    return written


if __name__ == "__main__":
    main(sys.argv[1])
