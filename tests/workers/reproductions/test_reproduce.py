"""`plumbline reproduce` on two releases of a package that the test writes, each in an environment of its own."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from checks.errors import BadRequest
from workers.cli import main
from workers.reproductions import case as case_module
from workers.reproductions.case import load_cases, load_reasons
from workers.reproductions.outcome import Judged, Reproduction, Side, find_troubles, read_document, read_kept, render
from workers.reproductions.report import render_markdown

SLUG = "hf-ga-mean-of-means"
OTHER = "trl-dpo-ga-scale"

DRIVER = """
import standin
import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(8, 4)
        self.lm_head = nn.Linear(4, 8)

    def forward(self, input_ids, labels):
        logits = self.lm_head(self.embed_tokens(input_ids))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()) * standin.FACTOR


model, ids = Model(), torch.tensor([[1, 2, 3, 4]])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(input_ids=ids, labels=ids).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

CASE = """
driver = "driver.py"
shows = "A loop that scales its loss by what the release says."
{unfixed}
[run]
framework = "standin"
model = "tiny:llama"
data = "gsm8k_sample"
settings = ["steps=2"]
checks = ["run.completes"]
[faulty]
packages = ["standin==1.0"]
{fixed}
[expects]
fails = ["run.completes"]
says = "not finite"
"""
FIXED = '[fixed]\npackages = ["standin==2.0"]'


def write_release(folder: Path, version: str, factor: str) -> None:
    """A wheel of one module, which also lets its environment see this one's torch."""
    stem = f"standin-{version}"
    files = {
        "standin.py": f"FACTOR = float({factor!r})\n",
        "here.pth": str(Path(torch.__file__).parent.parent) + "\n",
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: standin\nVersion: {version}\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{stem}.dist-info/RECORD"] = "".join(f"{path},,\n" for path in files)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


@pytest.fixture
def cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of cases in place of those that ship, releases, and places of its own for all that is made."""
    releases, folder = tmp_path / "releases", tmp_path / "cases"
    for made in (releases, folder):
        made.mkdir()
    write_release(releases, "1.0", "nan")
    write_release(releases, "2.0", "1")
    (folder / "driver.py").write_text(DRIVER, encoding="utf-8")
    reasons = tmp_path / "reasons.toml"
    reasons.write_text(f'{OTHER} = "it takes two processes"\n', encoding="utf-8")
    for name, value in (("PIP_CONFIG_FILE", os.devnull), ("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(releases))):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PLUMBLINE_ENVIRONMENTS", str(tmp_path / "environments"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(case_module, "CASES", folder)
    monkeypatch.setattr(case_module, "REASONS", reasons)
    for cached in (load_cases, load_reasons):
        cached.cache_clear()
    yield folder
    for cached in (load_cases, load_reasons):
        cached.cache_clear()


def write_case(folder: Path, *, fixed: bool = True) -> None:
    text = CASE.format(fixed=FIXED if fixed else "", unfixed="" if fixed else 'unfixed = "the report is open"')
    (folder / f"{SLUG}.toml").write_text(text, encoding="utf-8")
    load_cases.cache_clear()


def test_a_problem_is_shown_in_the_release_that_has_it_and_gone_in_the_other(
    cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_case(cases)
    out, file, page = tmp_path / "kept", tmp_path / "found.json", tmp_path / "page.md"
    asked = ["reproduce", "--out", str(out)]
    assert main([*asked, SLUG, "--json", str(file), "--write", str(page), "--keep", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr()
    assert "standin 1.0" in said.out
    assert "▲ fail" in said.out
    assert "recorded values are not finite, first" in said.out
    assert "● pass" in said.out
    assert said.out.rstrip().endswith("reproduced")
    assert "faulty, installing" in said.err
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["reproduced"] is True
    assert found["url"] == "https://github.com/huggingface/transformers/pull/34191"
    assert [found[side]["verdicts"][0]["status"] for side in ("faulty", "fixed")] == ["fail", "pass"]
    assert found["faulty"]["packages"]["standin"] == "1.0"
    assert json.loads((out / f"{SLUG}.json").read_text(encoding="utf-8")) == found
    assert (tmp_path / "runs" / SLUG / "fixed" / "captures" / "run" / "manifest.json").is_file()
    text = page.read_text(encoding="utf-8")
    assert "1 of 1 cases: 1 fail on the faulty and pass on the fixed release; no release mends the other 0." in text
    assert f"- {OTHER}: it takes two processes" in text
    # What is kept is not run again; of another case of the same name it would be.
    assert main([*asked, "--all"]) == 0
    assert "faulty" not in capsys.readouterr().err
    trouble = "run.completes on the fixed release is fail: it stopped; pass was expected"
    kept = out / f"{SLUG}.json"
    kept.write_text(json.dumps({**found, "troubles": [trouble]}), encoding="utf-8")
    assert main([*asked, "--all", "--json", str(file)]) == 1
    printed = capsys.readouterr().out
    assert f"not as expected {trouble}" in printed
    assert printed.rstrip().endswith("not reproduced")
    assert json.loads(file.read_text(encoding="utf-8"))["reproductions"][0]["reproduced"] is False
    case = load_cases()[SLUG]
    assert read_kept(out, SLUG, digest=case.digest) is not None
    assert read_kept(out, SLUG, digest="another") is None
    kept.write_text("{}", encoding="utf-8")
    with pytest.raises(BadRequest, match="is no kept reproduction"):
        read_kept(out, SLUG, digest=case.digest)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hf-ga-mean-of-mean"], "there is no problem 'hf-ga-mean-of-mean'; did you mean hf-ga-mean-of-means"),
        ([OTHER], f"{OTHER} cannot be shown again: it takes two processes"),
        (["verl-megatron-temperature"], "has no case: no release is known to show it"),
        ([], "none is named"),
        ([SLUG, "--all"], f"{SLUG} and --all were given"),
        ([SLUG, "--json", "found.txt"], "found.txt has another ending"),
        ([SLUG, "--time-limit", "0"], "argument --time-limit: '0' is not a number above 0"),
        ([SLUG, "--time-limit", "nan"], "argument --time-limit: 'nan' is not a number above 0"),
        ([SLUG, "--out", __file__], f"out: {__file__} cannot be made a directory (File exists); name a new directory."),
        (["--out", __file__, "--write", "page.md"], "cannot be made a directory (File exists); name a new directory."),
        ([SLUG, "--out", f"{__file__}/kept"], "cannot be made a directory (Not a directory); name a new directory."),
        ([SLUG, "--keep", __file__], f"keep: {__file__} cannot be made a directory (File exists)"),
    ],
)
def test_bad_input_is_refused_before_anything_is_built(
    cases: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_case(cases)
    arguments = [str(tmp_path / each) if each in ("found.txt", "page.md") else each for each in arguments]
    try:
        code = main(["reproduce", *arguments])
    except SystemExit as ending:
        code = int(str(ending.code))
    assert code == 3
    assert message in capsys.readouterr().err
    assert not (tmp_path / "environments").exists()


def test_the_list_says_which_can_be_shown_and_why_another_cannot(
    cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_case(cases)
    assert main(["reproduce", "--list"]) == 0
    said = capsys.readouterr().out
    row = next(line for line in said.splitlines() if SLUG in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [SLUG, "standin 1.0", "standin 2.0", "run.completes"]
    assert f"not {OTHER}: it takes two processes" in said


def test_an_environment_that_does_not_build_is_said_and_the_others_go_on(
    cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_case(cases)
    file = cases / f"{SLUG}.toml"
    file.write_text(file.read_text(encoding="utf-8").replace("standin==1.0", "standin==9.0"), encoding="utf-8")
    load_cases.cache_clear()
    assert main(["reproduce", "--all", "--out", str(tmp_path / "kept")]) == 1
    assert "satisfies the requirement standin==9.0" in capsys.readouterr().err
    assert not list((tmp_path / "kept").iterdir())


GOOD, BAD = Judged("step.loss", "pass", "it agrees"), Judged("step.loss", "fail", "it differs")
OPEN = Judged("step.loss", "inconclusive", "nothing was compared")
OTHERS = Judged("data.mask", "fail", "another fault")


@pytest.mark.parametrize(
    ("faulty", "fixed", "also", "troubles"),
    [
        ([BAD], [GOOD], {}, []),
        ([BAD, OTHERS], [GOOD], {}, []),
        ([GOOD], [GOOD], {}, ["step.loss on the faulty release is pass: it agrees; fail was expected"]),
        ([BAD], [BAD], {}, ["step.loss on the fixed release is fail: it differs; pass was expected"]),
        (
            [BAD],
            [OPEN],
            {},
            ["step.loss on the fixed release is inconclusive: nothing was compared; pass was expected"],
        ),
        ([], [GOOD], {}, ["step.loss on the faulty release was not judged; fail was expected"]),
        ([BAD], [GOOD, OTHERS], {}, ["data.mask on the fixed release is fail: another fault"]),
        ([BAD], [GOOD, OTHERS], {"data.mask": "why"}, []),
        ([BAD], None, {}, []),
    ],
)
def test_what_counts_as_shown_again(
    faulty: list[Judged], fixed: list[Judged] | None, also: dict[str, str], troubles: list[str]
) -> None:
    sides = [None if each is None else Side(("p==1",), {}, tuple(each), 1.0) for each in (faulty, fixed)]
    assert sides[0] is not None
    assert list(find_troubles(sides[0], sides[1], expected=("step.loss",), also=also)) == troubles


def test_a_run_that_fails_for_another_reason_shows_nothing() -> None:
    sides = [Side(("p==1",), {}, (each,), 1.0) for each in (BAD, GOOD)]
    assert find_troubles(sides[0], sides[1], expected=("step.loss",), also={}, says="differs") == ()
    assert find_troubles(sides[0], sides[1], expected=("step.loss",), also={}, says="4 times") == (
        "step.loss on the faulty release says 'it differs'; '4 times' was expected in it",
    )


def test_the_page_names_the_releases_the_figures_and_what_was_not_shown(cases: Path) -> None:
    write_case(cases)
    side = Side(
        ("standin==1.0", "torch==2.13.0"), {"torch": "2.13.0"}, (replace(BAD, figures=("worst: 2 / 1",)),), 12.0
    )
    shown = Reproduction(
        slug=SLUG,
        url="https://example.org/1",
        shows="A run.",
        expected=("step.loss",),
        also={},
        unfixed="",
        date="2026-11-30T10:00:00+00:00",
        digest="0",
        faulty=side,
        fixed=replace(side, requested=("standin==2.0",), verdicts=(GOOD,)),
        troubles=(),
    )
    page = render_markdown([shown], cases=load_cases(), reasons={})
    row = f"| [{SLUG}](https://example.org/1) | standin 1.0 | standin 2.0 | step.loss | 2026-11-30 |"
    assert row in page
    assert "- faulty: torch 2.13.0; 12 s; 1 fail" in page
    assert "  - `step.loss` **fail**: it differs (worst: 2 / 1)" in page
    assert "  - `step.loss` **pass**: it agrees" in page
    other = replace(shown, troubles=("step.loss on the fixed release is fail: it differs; pass was expected",))
    page = render_markdown([other], cases=load_cases(), reasons={})
    assert row not in page
    assert f"- {SLUG}: step.loss on the fixed release is fail: it differs; pass was expected" in page
    assert read_document(json.loads(render(shown))) == shown
