"""Which of ms-swift's templates renders the rows, and which tokens then count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checks.references.template import load_tokenizer, render_messages
from checks.samples import Sample
from checks.spec import RunSpec

CHATML = "<|im_start|>{}\n{}<|im_end|>\n"
"""a turn in the template that ms-swift calls chatml"""


def choose_template(spec: RunSpec, sample: Sample, *, answers_only: bool | None = None) -> dict[str, Any]:
    """The options of `swift` and `megatron` for rows of the sample's form; `answers_only`: unless the spec says it.

    ms-swift's Jinja backend renders with the model's own chat template and cannot tell the assistant's tokens apart, so
    that it serves where every token counts. A template of the model's that is not chatml is left to ms-swift, which
    chooses one by the type of the model.
    """
    answers_only = spec.assistant_only if answers_only is None else answers_only
    if sample.form != "messages":
        loss_scale = "default" if answers_only else "all"
        return {"use_chat_template": False, "template": "dummy", "loss_scale": loss_scale}
    named = {"template": "chatml"} if _speaks_chatml(spec.model) else {}
    if answers_only:
        return {**named, "loss_scale": "default"}
    return {**named, "template_backend": "jinja", "loss_scale": "all"}


def _speaks_chatml(model: Path) -> bool:
    turns = (("user", "q"), ("assistant", "a"))
    return render_messages(turns, load_tokenizer(model)) == "".join(CHATML.format(*turn) for turn in turns)
