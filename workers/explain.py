"""`plumbline explain`: for a result that was written as JSON, which known problems its failing checks may be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from rich.padding import Padding
from rich.text import Text

from checks.catalogue.problem import load_problems, load_recurrences
from checks.errors import BadRequest
from checks.verdict import Status
from workers.report import make_console
from workers.report.as_json import describe_verdict
from workers.report.console import clean_text
from workers.report.reading import UnknownDocument, read_result

if TYPE_CHECKING:
    from rich.console import Console

    from checks.matching.match import Suggestion
    from workers.cli import Subcommands
    from workers.request import ValidationResult

MOST = 3
"""Problems of each check that are told, unless more are asked for."""
LARGEST_MOST = 20


def add_explain(commands: Subcommands) -> None:
    """Add `explain`."""
    parser = commands.add_parser("explain", help="which known problems the failing checks of a result may be, and why")
    parser.add_argument("result", type=Path, metavar="RESULT.json", help="what `validate --json` wrote")
    parser.add_argument("--most", type=int, default=MOST, metavar="N", help="problems of each check (default: 3)")
    parser.set_defaults(run=lambda options: explain(options.result, most=options.most))


def explain(file: Path, *, most: int = MOST) -> int:
    """Print what each failing check may be; 0, whatever was found.

    Raises:
        BadRequest: no result can be read there, or `most` is out of its bounds.
    """
    if not 1 <= most <= LARGEST_MOST:
        raise BadRequest("most", f"is {most}", f"give a number from 1 to {LARGEST_MOST}")
    result = _read(file)
    console = make_console()
    found = suggest_for(result, most=most)
    if not found:
        console.print("no check fails, so that there is nothing to explain")
    for sentence, (check, suggestions) in zip(_list_sentences(result), found.items(), strict=True):
        console.print(Text(f"{check} fails: {clean_text(sentence)}", style="bold"))
        for place, each in enumerate(suggestions, 1):
            _print(place, each, console)
    if found:
        console.print("Problems are suggested and not decided; what a suggestion rests on is in its reasons.")
    return 0


def suggest_for(result: ValidationResult, *, most: int) -> Mapping[str, tuple[Suggestion, ...]]:
    """Failing check → the problems that it may be, in the order of the verdicts."""
    from checks.matching.described import describe_finding, list_candidates, list_used
    from checks.matching.match import Matcher

    failures = [describe_verdict(each) for each in result.verdicts if each.status is Status.FAIL]
    if not failures:
        return {}
    matcher = Matcher(list_candidates(load_problems(), load_recurrences()))
    packages = {str(canonicalize_name(name)): release for name, release in result.environment.items()}
    findings = (
        describe_finding(
            each,
            framework=result.spec.framework,
            packages=packages,
            model_class=_read_class(result.spec.model),
            others=failures,
            used=list_used(result.spec),
        )
        for each in failures
    )
    return {each.signature.check: matcher.suggest(each, most=most) for each in findings}


def _read(file: Path) -> ValidationResult:
    remedy = "name what `plumbline validate --json FILE` wrote"
    try:
        document: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRequest("result", f"{file} cannot be read ({error.strerror})", remedy) from None
    except ValueError:
        raise BadRequest("result", f"{file} is no JSON", remedy) from None
    if not isinstance(document, dict):
        raise BadRequest("result", f"{file} holds no object", remedy)
    try:
        return read_result(document)
    except UnknownDocument as error:
        raise BadRequest("result", f"{file}: {error}", remedy) from None


def _read_class(model: Path) -> str:
    """The class that the checkpoint's config names; empty where the checkpoint is not here."""
    try:
        named = json.loads((model / "config.json").read_text(encoding="utf-8")).get("architectures")
    except (OSError, ValueError, AttributeError):
        return ""
    return str(named[0]) if isinstance(named, list) and named else ""


def _list_sentences(result: ValidationResult) -> list[str]:
    return [each.sentence for each in result.verdicts if each.status is Status.FAIL]


def _print(place: int, suggestion: Suggestion, console: Console) -> None:
    problem = next(each for each in load_problems() if each.slug == suggestion.slug)
    console.print(Text(f"  {place}. {problem.title} ({problem.framework}, {suggestion.basis.value})"))
    for line in (*suggestion.reasons, problem.url):
        console.print(Padding(Text(line), (0, 0, 0, 5), expand=False))
