"""What each tracker asks for: the headings of its own issue form, in its order, and where an issue is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Sections = tuple[tuple[str, tuple[str, ...]], ...]
Service = Literal["github", "gitlab", "none"]


@dataclass(frozen=True)
class TrackerForm:
    """A tracker: `sections` are headings with the parts of `content.WRITERS` under them."""

    service: Service
    project: str
    """its address; empty where the person names it"""
    sections: Sections
    source: str
    """where its form can be read"""


EVIDENCE = ("comparison", "numbers", "plot")
REST = ("cause", "context", "limits")

_HUGGING_FACE: Sections = (
    ("System Info", ("versions",)),
    ("Who can help?", ("nobody",)),
    ("Information", ("own script",)),
    ("Tasks", ("own task",)),
    ("Reproduction", ("summary", "settings", "script", "output")),
    ("Expected behavior", (*EVIDENCE, *REST)),
)
_WITHOUT_WHO: Sections = tuple(section for section in _HUGGING_FACE if section[0] != "Who can help?")
_MEGATRON: Sections = (
    ("Describe the bug", ("summary", "numbers", "plot")),
    ("Steps/Code to reproduce bug", ("settings", "script", "output")),
    ("Expected behavior", ("comparison",)),
    ("Additional context", ("versions", *REST)),
)
NO_FORM = "it has no form of its own"
PLAIN: Sections = (
    ("Summary", ("summary",)),
    ("Expected and observed", EVIDENCE),
    ("How to reproduce", ("settings", "script", "output")),
    ("Suspected cause", REST),
    ("Versions", ("versions",)),
)


def _github(project: str, sections: Sections, form: str) -> TrackerForm:
    address = f"https://github.com/{project}"
    return TrackerForm("github", address, sections, f"{address}/tree/main/.github/ISSUE_TEMPLATE{form}")


TRACKERS: Mapping[str, TrackerForm] = {
    "transformers": _github("huggingface/transformers", _HUGGING_FACE, "/bug-report.yml"),
    "trl": _github("huggingface/trl", _WITHOUT_WHO, "/bug-report.yml"),
    "accelerate": _github("huggingface/accelerate", _WITHOUT_WHO, "/bug-report.yml"),
    "peft": _github(
        "huggingface/peft",
        tuple(each for each in _HUGGING_FACE if each[0] not in ("Information", "Tasks")),
        "/bug-report.yml",
    ),
    "automodel": TrackerForm("github", "https://github.com/NVIDIA-NeMo/Automodel", PLAIN, NO_FORM),
    "ms-swift": _github(
        "modelscope/ms-swift",
        (
            ("Checklist", ("searched",)),
            ("Bug Description", ("summary", *EVIDENCE)),
            ("How to Reproduce", ("versions", "settings", "script", "output")),
            ("Additional Information", REST),
        ),
        "/1-bug-report.yml",
    ),
    "megatron-lm": _github("NVIDIA/Megatron-LM", _MEGATRON, "/bug_report.md"),
    "miles": TrackerForm("github", "https://github.com/radixark/miles", PLAIN, NO_FORM),
    "github": TrackerForm("github", "", PLAIN, ""),
    "gitlab": TrackerForm("gitlab", "", PLAIN, ""),
    "text": TrackerForm("none", "", PLAIN, ""),
}

OF_FRAMEWORK: Mapping[str, str] = {
    "transformers": "transformers",
    "trl": "trl",
    "accelerate": "accelerate",
    "peft": "peft",
    "automodel": "automodel",
    "nemo-automodel": "automodel",
    "ms_swift": "ms-swift",
    "ms-swift": "ms-swift",
    "megatron_swift": "ms-swift",
    "megatron-swift": "ms-swift",
    "megatron_core": "megatron-lm",
    "megatron-core": "megatron-lm",
    "megatron-lm": "megatron-lm",
    "miles": "miles",
}
"""adapter, or framework of the catalogue → whose tracker"""


def tracker_of(framework: str) -> str:
    """The tracker that a framework's faults are reported in."""
    return OF_FRAMEWORK.get(framework.lower(), "github")
