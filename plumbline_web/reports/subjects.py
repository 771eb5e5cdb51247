"""What is known about a finding or a problem, as the content of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.document import read_paragraph
from checks.errors import BadRequest
from checks.registry import CHECKS
from checks.samples import read_samples
from plumbline_web.catalog.models import Framework
from plumbline_web.problems.models import Problem
from plumbline_web.reports.content import Content, Number, show_number
from plumbline_web.reports.figure import read_figure
from plumbline_web.reports.models import Report
from plumbline_web.reports.reproducers.generate import Generated, generate
from plumbline_web.validations.models import Finding
from workers.frameworks import names

LONGEST_TITLE = 160

SHOWN_SETTINGS = ("batch", "accumulation", "seq_len", "precision", "attention")
"""Settings that are told even where they are the defaults."""


@dataclass(frozen=True)
class Subject:
    """What a new report is about, and what it begins with."""

    content: Content
    framework: str
    generated: Generated


def read_subject(*, finding: Finding | None, problem: Problem | None) -> Subject:
    """Of a finding, with the problem that it is, or of a problem alone."""
    if finding is not None:
        return Subject(describe_finding(finding, problem), finding.validation.framework.name, generate_for(finding))
    assert problem is not None
    reason = "a script can be written for a finding alone; this report is about a problem"
    return Subject(describe_problem(problem), problem.framework, Generated("", reason))


def framework_of(report: Report) -> str:
    """The adapter whose interpreter a report's script is run in, unless an environment is named."""
    if report.finding is not None:
        return str(report.finding.validation.framework.name)
    assert report.problem is not None
    name = report.problem.framework.lower().replace("-", "_")
    return name if name in names() else ""


def framework_title(report: Report) -> str:
    """What a report's reader calls the framework."""
    if report.finding is not None:
        return str(report.finding.validation.framework.title)
    return report.problem.framework if report.problem is not None else ""


DISTRIBUTIONS: Mapping[str, str] = {"megatron-lm": "megatron-core", "automodel": "nemo-automodel"}
"""framework of the catalogue → distribution on the package index, where it has another name"""


def package_of(report: Report) -> str:
    """The distribution whose release decides whether a report's fault is mended."""
    framework = Framework.objects.filter(name=framework_of(report)).first()
    if framework is not None:
        return framework.package
    name = report.problem.framework.lower() if report.problem is not None else ""
    return DISTRIBUTIONS.get(name, name)


def describe_finding(finding: Finding, problem: Problem | None) -> Content:
    """The verdict in words and numbers, and of the problem its cause and its addresses."""
    result, validation = finding.result, finding.validation
    document: Mapping[str, Any] = result.document
    check = CHECKS.get(finding.check_name)
    environment = validation.environment
    where = f"{environment.framework.title} {environment.version}, {validation.model.family}"
    numbers = _list_numbers(document)
    claim = check.claim if check is not None else f"`{finding.check_name}` holds"
    reference = read_paragraph(check.description, "Reference") if check is not None else ""
    silent = " Nothing else shows it: training goes on, and the loss is finite." if finding.silent else ""
    first = f" It starts at `{result.first_wrong}`." if result.first_wrong else ""
    return Content(
        title=_shorten(f"{where}: {result.sentence}"),
        summary=f"{where}: {result.sentence}.{first}{silent}",
        expected=_sentence(claim) + (f" Compared with: {_sentence(reference)}" if reference else ""),
        observed=_observe(result.sentence, numbers),
        numbers=numbers,
        settings=tuple(_list_settings(validation.settings, validation.spec, validation.model.family)),
        cause=_say_cause(finding, problem),
        context=_list_addresses(problem),
        limits=_say_limits(finding),
        has_plot=read_figure(document) is not None,
    )


def describe_problem(problem: Problem) -> Content:
    """A problem of the catalogue, in the catalogue's words."""
    affected = f" Affected: {problem.affected}." if problem.affected else ""
    return Content(
        title=_shorten(problem.title),
        summary=f"{_sentence(problem.symptom)}{affected}",
        expected="_say what must come out, and by which definition_",
        observed=_sentence(problem.symptom),
        settings=(("component", problem.component),),
        cause=_say_cause(None, problem),
        context=_list_addresses(problem),
        limits="_say on which devices and with how many processes it was run, and on which not_",
    )


def generate_for(finding: Finding) -> Generated:
    """The reproducer of a finding, or why there is none."""
    validation = finding.validation
    run = validation.runs.order_by("pk").first()
    device = run.device if run is not None else "CPU"
    return generate(
        finding.check_name,
        spec=validation.spec,
        family=validation.model.family,
        form=_read_form(validation.spec),
        on_gpu=device not in ("", "CPU"),
    )


def _read_form(spec: Mapping[str, Any]) -> str | None:
    """Of the rows of the validation's data; None where they cannot be read here."""
    try:
        return read_samples(Path(spec["data"]))[0].form
    except (BadRequest, OSError, IndexError):
        return None


def _list_numbers(document: Mapping[str, Any]) -> tuple[Number, ...]:
    measured = sorted(document.get("measurements") or (), key=lambda each: (each["holds"], -_ratio(each)))
    return tuple(
        Number(
            name=each["name"] if each["block"] is None else f"{each['name']} {each['block']}",
            error=each["value"],
            allowed=each["threshold"],
            floor=each["floor"],
            unit=each["unit"],
        )
        for each in measured
    )


def _ratio(each: Mapping[str, Any]) -> float:
    value, threshold = float(each["value"]), float(each["threshold"])
    if value != value or not threshold:
        return float("inf")
    return abs(value) / threshold


def _observe(sentence: str, numbers: tuple[Number, ...]) -> str:
    if not numbers:
        return f"{sentence}."
    worst = numbers[0]
    error, allowed = show_number(worst.error), show_number(worst.allowed)
    return f"{sentence}. Worst: {worst.name}, {error} ({worst.unit}), and {allowed} is allowed."


def _list_settings(asked: Mapping[str, Any], spec: Mapping[str, Any], family: str) -> list[tuple[str, str]]:
    names = [*SHOWN_SETTINGS, *(name for name in sorted(asked) if name not in SHOWN_SETTINGS)]
    return [("model", f"a {family} model"), *((name, str(spec[name])) for name in names if name in spec)]


def _say_cause(finding: Finding | None, problem: Problem | None) -> str:
    parts = []
    if problem is not None:
        parts.append(_sentence(problem.root_cause))
        if problem.fix:
            parts.append(f"A fix: {_sentence(problem.fix)}")
    elif finding is not None and finding.result.first_wrong:
        parts.append(f"The first thing that is wrong is `{finding.result.first_wrong}`.")
    parts.append("_file and line, where they are known_")
    return " ".join(parts)


def _list_addresses(problem: Problem | None) -> str:
    if problem is None:
        return ""
    return "\n".join(f"- {address}" for address in (problem.url, *problem.related_urls))


def _say_limits(finding: Finding) -> str:
    validation = finding.validation
    run = validation.runs.order_by("pk").first()
    device = (run.device if run is not None else "") or "an unknown device"
    processes = 1
    for name in ("dp_size", "tp_size", "pp_size", "cp_size", "ep_size"):
        processes *= int(validation.spec.get(name, 1))
    plural = "process" if processes == 1 else "processes"
    others = []
    if device == "CPU":
        others.append("on a GPU")
    if processes == 1:
        others.append("with several processes")
    unseen = f" Not run: {' or '.join(others)}." if others else ""
    shared = finding.result.document.get("shared_code") or ()
    blind = f" Blind to faults in {', '.join(f'`{each}`' for each in shared)}, which both sides use." if shared else ""
    return f"Run on {device}, {processes} {plural}, {validation.spec.get('precision', 'float32')}.{unseen}{blind}"


def _sentence(text: str) -> str:
    """The text with one full stop at its end."""
    text = " ".join(text.split())
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def _shorten(title: str) -> str:
    """A title of one line that a list can show."""
    title = " ".join(title.split())
    return title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 1].rstrip()}…"
