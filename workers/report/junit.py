"""The result as JUnit XML, one test case a check, for a CI server's own report."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from checks.verdict import Status, Verdict
from workers.report.numbers import format_measurement
from workers.request import ValidationResult, total_seconds

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 forbids even as references (https://www.w3.org/TR/xml/#charsets); logs hold some."""


def render_junit(result: ValidationResult) -> str:
    """A `testsuite`: fail → failure, error and inconclusive → error, skipped → skipped."""
    verdicts = result.verdicts
    counts = {status: sum(verdict.status is status for verdict in verdicts) for status in Status}
    suite = ElementTree.Element(
        "testsuite",
        name=_clean(f"plumbline.{result.request.framework}"),
        tests=str(len(verdicts)),
        failures=str(counts[Status.FAIL]),
        errors=str(counts[Status.ERROR] + counts[Status.INCONCLUSIVE]),
        skipped=str(counts[Status.SKIPPED]),
        time=f"{total_seconds(result.phases):.3f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _list_properties(result):
        ElementTree.SubElement(properties, "property", name=_clean(name), value=_clean(value))
    for verdict in verdicts:
        suite.append(_build_case(verdict, result=result))
    ElementTree.indent(suite)
    text = ElementTree.tostring(suite, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _list_properties(result: ValidationResult) -> list[tuple[str, str]]:
    request = result.request
    given = [("model", request.model), ("data", request.data), ("inject", request.inject or "")]
    return given + [(f"set.{name}", str(value)) for name, value in request.settings.items()]


def _build_case(verdict: Verdict, *, result: ValidationResult) -> ElementTree.Element:
    request = result.request
    case = ElementTree.Element(
        "testcase",
        classname=_clean(f"plumbline.{request.framework}.{request.model}"),
        name=_clean(verdict.check),
        time=f"{verdict.elapsed_s:.3f}",
    )
    if verdict.status is Status.PASS:
        return case
    if verdict.status is Status.SKIPPED:
        ElementTree.SubElement(case, "skipped", message=_clean(verdict.sentence))
        return case
    kind = verdict.pattern.value if verdict.status is Status.FAIL and verdict.pattern else verdict.status.value
    tag = "failure" if verdict.status is Status.FAIL else "error"
    element = ElementTree.SubElement(case, tag, type=kind, message=_clean(verdict.sentence))
    element.text = _clean(_describe(verdict))
    return case


def _describe(verdict: Verdict) -> str:
    lines = [verdict.sentence]
    if verdict.first_wrong is not None:
        lines.append(f"first wrong: {verdict.first_wrong}")
    for measurement in verdict.measurements:
        word = "holds" if measurement.holds else "does not hold"
        lines.append(f"{measurement.name}: {format_measurement(measurement)}, {word}")
    return "\n".join(lines)


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
