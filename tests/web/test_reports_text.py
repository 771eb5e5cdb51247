"""Reports as text: what is taken out of them, how they are put together, and what a run of a script says."""

from __future__ import annotations

import io
import math
import string
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.models.families import FAMILIES
from plumbline_web.reports.content import OUTPUT, PLOT, SCRIPT, VERSIONS, WRITERS, Content, Number, write_body
from plumbline_web.reports.enums import Tracker
from plumbline_web.reports.figure import Figure, Series, draw_png, read_figure, write_csv
from plumbline_web.reports.issue_url import LONGEST, build_issue_url
from plumbline_web.reports.judging import judge_run
from plumbline_web.reports.redaction import KINDS, Private, Redactor
from plumbline_web.reports.rendering import NO_OUTPUT, NO_SCRIPT, Source, list_files, pack, render
from plumbline_web.reports.reproducers.generate import STEP_CHECKS, generate, write_skeleton
from plumbline_web.reports.trackers import TRACKERS, tracker_of
from tests.web.factories import failing_verdicts, make_spec

PRIVATE = Private(
    paths={"/srv/house/data", "/home/anna"},
    hosts={"node17", "node17.corp.example"},
    users={"anna", "anna@corp.example", "Anna Berg"},
    models={"/models/secret-7b", "secret-7b"},
)

CONTENT = Content(
    title="the loss is wrong",
    summary="The loss is divided by 336, and 335 tokens count.",
    expected="the mean over the counted tokens",
    observed="another mean",
    numbers=(Number("a | b", 0.5, 1e-5, None, "relative error"), Number("c", "inf", 1e-5, 1e-7, "relative error")),
    settings=(("batch", "2"),),
    cause="the wrong line",
    context="- https://github.com/o/n/issues/1",
    limits="Run on CPU.",
    has_plot=True,
)


def clean(text: str, *kept: str) -> tuple[str, Counter[str]]:
    redactor = Redactor(PRIVATE, kept=kept)
    return redactor.clean(text), redactor.removed


def test_a_file_of_a_package_keeps_its_place_in_the_package() -> None:
    text = 'File "/home/anna/v/lib/python3.11/site-packages/transformers/trainer.py", line 12, in step'
    assert clean(text) == ('File "<path>/transformers/trainer.py", line 12, in step', Counter(path=1))
    assert clean("/usr/lib/python3.11/json/decoder.py:3")[0] == "<path>/json/decoder.py:3"


@pytest.mark.parametrize(
    ("text", "cleaned", "kind"),
    [
        ("in /tmp/x7/rows.jsonl.", "in <path>.", "path"),
        ("PATH=/usr/bin:/home/bob/bin", "PATH=<path>:<path>", "path"),
        ("~/work/run1 and", "<path> and", "path"),
        (r"C:\Users\bob\x.py", "<path>", "path"),
        ("on NODE17.corp.example:", "on <host>:", "host"),
        ("from 10.2.33.4 now", "from <host> now", "host"),
        ("by anna, and", "by <user>, and", "user"),
        ("write to bob.k@far.example", "write to <user>", "user"),
        ("of Secret-7B it", "of <model> it", "model"),
    ],
)
def test_each_kind_is_taken_out_and_counted(text: str, cleaned: str, kind: str) -> None:
    found, removed = clean(text)
    assert found == cleaned
    assert removed == Counter({kind: cleaned.count("<")})


@pytest.mark.parametrize(
    "text",
    [
        "https://github.com/huggingface/trl/pull/3200/files",
        "torch 2.13.0+cpu, transformers 5.24.0, 4.57.6",
        "root cause, a savanna, 1/2 and and/or, model.layers.0/attn",
        "127.0.0.1 and localhost",
        "loss 1e-3/2e-4, a/b/c",
    ],
)
def test_what_is_public_stays(text: str) -> None:
    assert clean(text) == (text, Counter())


def test_what_is_ticked_stays() -> None:
    text = "anna on node17 with secret-7b in /home/anna/x"
    assert clean(text, *KINDS) == (text, Counter())
    assert clean(text, "user", "path")[0] == "anna on <host> with <model> in /home/anna/x"


WORD = st.text(string.ascii_lowercase, min_size=4, max_size=12)
NOISE = st.text(string.ascii_letters + " \n.,:;'\"()[]{}|`*#-=<>!?", max_size=20)


@settings(max_examples=60, deadline=None)
@given(
    host=WORD.map(lambda word: f"{word}-node.corp.example"),
    user=WORD.map(lambda word: f"{word}zq"),
    folder=WORD.map(lambda word: f"/export/{word}zx/runs"),
    model=WORD.map(lambda word: f"/pool/{word}zk-70b"),
    noise=st.lists(NOISE, min_size=7, max_size=7),
)
def test_no_secret_survives_anywhere_in_the_zip(
    host: str, user: str, folder: str, model: str, noise: list[str]
) -> None:
    name = model.rsplit("/", 1)[-1]
    secrets = (host, host.split(".")[0], user, folder, model, name)
    text = "".join(part for pair in zip(noise, (*secrets, ""), strict=True) for part in pair)
    joined = f"{text}\n{folder}/{user}.py {user}@{host} {host}:{folder} `{name}` {user.upper()} {model}/config.json"
    private = Private(paths={folder}, hosts={host, host.split(".")[0]}, users={user}, models={model, name})
    figure = Figure(joined, joined, joined, True, (joined, "b"), (Series(joined, "points", (1.0, 2.0)),))
    body = f"{joined}\n{SCRIPT}\n{OUTPUT}\n{PLOT}\n{VERSIONS}"
    rendered = render(Source(joined, body, f"# {joined!r}", joined, {"a": "1"}, figure), Redactor(private))
    assert rendered.figure is not None
    # Its pixels take a second: what is written into them is the cleaned figure, as data.csv is.
    files = {**list_files(replace(rendered, figure=None)), "data.csv": write_csv(rendered.figure).encode()}
    with zipfile.ZipFile(io.BytesIO(pack(files))) as archive:
        assert set(archive.namelist()) == {"report.md", "reproduce.py", "output.txt", "data.csv"}
        contents = [archive.read(each) for each in archive.namelist()]
    for content in (*contents, repr(rendered.figure).encode()):
        for secret in secrets:
            assert secret.encode().lower() not in content.lower()


def test_marks_are_replaced_and_a_report_without_a_reproducer_says_so() -> None:
    source = Source("t", f"a\n{SCRIPT}\n{OUTPUT}\n{VERSIONS}\n{PLOT}", "", "", {"torch": "2.13.0", "python": "3.11.7"})
    rendered = render(source, Redactor(Private()))
    assert rendered.markdown == f"a\n{NO_SCRIPT}\n{NO_OUTPUT}\n- python 3.11.7\n- torch 2.13.0\n"
    assert set(list_files(rendered)) == {"report.md"}
    assert list_files(rendered, notice="N")["report.md"].startswith(b"# t\n\nN\n\na\n")


def test_a_mark_in_a_script_is_no_mark_and_its_fence_is_longer_than_any_in_it() -> None:
    source = Source("t", SCRIPT, f'x = """```` {OUTPUT}"""', "out", {})
    rendered = render(source, Redactor(Private()))
    assert rendered.markdown == f'`````python\nx = """```` {OUTPUT}"""\n`````\n'


def test_a_long_output_is_cut_in_the_text_and_whole_in_its_file() -> None:
    output = "\n".join(f"line {number}" for number in range(200))
    rendered = render(Source("t", OUTPUT, "x", output, {}), Redactor(Private()))
    assert "… 140 earlier lines are in output.txt\nline 140\n" in rendered.markdown
    assert list_files(rendered)["output.txt"].decode() == output


@pytest.mark.parametrize("tracker", Tracker.values)
def test_every_tracker_gets_every_part_that_it_asks_for(tracker: str) -> None:
    form = TRACKERS[tracker]
    body = write_body(CONTENT, form.sections)
    headings = [line for line in body.splitlines() if line.startswith("### ")]
    assert headings == [f"### {name}" for name, _ in form.sections]
    for wanted in (SCRIPT, OUTPUT, VERSIONS, PLOT, CONTENT.summary, CONTENT.cause, CONTENT.limits, CONTENT.expected):
        assert wanted in body, wanted
    assert "| a \\| b | 0.5 | 1e-05 | – | relative error |" in body
    assert {part for _, parts in form.sections for part in parts} <= set(WRITERS)


def test_a_framework_has_its_tracker_and_an_unknown_one_the_general_form() -> None:
    assert [tracker_of(name) for name in ("trl", "megatron_swift", "Megatron-LM", "verl")] == [
        *("trl", "ms-swift", "megatron-lm", "github")
    ]


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=300), st.lists(st.text(max_size=400), max_size=60).map("\n".join))
def test_an_address_of_an_issue_is_always_short_enough(title: str, body: str) -> None:
    for service in ("github", "gitlab"):
        url = build_issue_url("https://github.com/o/n", service=service, title=title, body=body)
        assert len(url) < LONGEST
        assert url.startswith("https://github.com/o/n/")


def test_a_shortened_issue_says_so_and_closes_its_code() -> None:
    body = "first\n```python\n" + "x = 1\n" * 4000 + "```\n"
    url = build_issue_url("https://gitlab.example/g/p/", service="gitlab", title="t", body=body)
    parts = urlsplit(url)
    assert (parts.path, len(url) < LONGEST, len(url) > 7_900) == ("/g/p/-/issues/new", True, True)
    text = parse_qs(parts.query)["issue[description]"][0]
    assert text.startswith("first\n```python\nx = 1\n")
    assert "\nx = 1\n```\n\n_Shortened: the whole report" in text
    short = parse_qs(urlsplit(build_issue_url("https://github.com/o/n", service="github", title="t", body="b")).query)
    assert short == {"title": ["t"], "body": ["b"]}
    assert build_issue_url("", service="none", title="t", body="b") == ""


@pytest.mark.parametrize(
    ("run", "shows", "sentence"),
    [
        ({"exit_code": 1}, True, "says that the result is wrong"),
        ({"exit_code": 0}, False, "says that the result is right"),
        ({"exit_code": 2, "output": "not judged: no trl"}, None, "exit code 2 and judged nothing: not judged: no trl"),
        ({"exit_code": 1, "last_error": "KeyError: 'x'"}, None, "broke (KeyError: 'x')"),
        ({"exit_code": 1, "output": "expected 1"}, None, "does not print what was observed"),
        ({"exit_code": 137, "ending": "out_of_memory"}, None, "the script out of memory"),
        (
            {"exit_code": 1, "differences": ["torch 2.6 instead of 2.13"]},
            None,
            "another environment than the",
        ),
    ],
)
def test_a_run_shows_a_fault_only_where_it_says_so_itself(
    run: dict[str, Any], shows: bool | None, sentence: str
) -> None:
    given_run = {"ending": "completed", "last_error": None, "output": "Expected: 1\nobserved: 2", **run}
    said = judge_run(**given_run)
    assert said.shows is shows
    assert sentence in said.sentence


def test_the_plot_of_a_verdict_has_all_that_was_measured() -> None:
    verdict = next(each for each in failing_verdicts() if each["check"] == "step.gradients")
    figure = read_figure(verdict)
    assert figure is not None
    assert (len(figure.x), [series.name for series in figure.series]) == (26, ["error", "allowed", "noise"])
    rows = write_csv(figure).splitlines()
    assert rows[0] == "name,error,allowed,noise"
    assert rows[1].split(",")[:2] == ["pooled scale", repr(verdict["measurements"][0]["value"])]
    png = draw_png(figure)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(png[16:20]) == 960
    assert b"Software" not in png


def test_a_plot_by_token_is_drawn_where_tokens_differ_and_gaps_stay_gaps() -> None:
    tokens = {"framework": [[1.0, 2.0, None]], "reference": [[1.0, 2.5, None]], "counted": [[True, True, False]]}
    figure = read_figure({"evidence": {"tokens": [tokens]}})
    assert figure is not None
    assert [series.y for series in figure.series] == [(1.0, 2.0), (1.0, 2.5)]
    plot = {"title": "p", "x": "x", "y": "y", "scale": "log"}
    curves = [
        {"name": "a", "style": "line", "x": [1, 3], "y": [1.0, None]},
        {"name": "b", "style": "line", "x": [2], "y": [5]},
    ]
    figure = read_figure({"evidence": {"plots": [{**plot, "curves": curves}]}})
    assert figure is not None
    assert write_csv(figure) == "x,a,b\n1.0,1.0,\n2.0,,5.0\n3.0,,\n"
    assert math.isnan(figure.series[0].y[1])
    assert read_figure({"evidence": {}, "measurements": []}) is None


@pytest.mark.parametrize(
    ("check", "framework", "changes", "reason"),
    [
        ("step.loss", "miles", {}, "for transformers and trl alone"),
        ("step.update", "trl", {}, "this finding is of step.update"),
        ("step.loss", "trl", {"lora": True, "precision": "bf16"}, "this run has precision=bf16, lora=True"),
        ("step.loss", "trl", {"dp_size": 2}, "dp_size=2"),
        ("step.loss", "trl", {"fault": "wrong-loss-count"}, "fault=wrong-loss-count"),
        ("data.mask", "transformers", {}, "by Plumbline's driver"),
        ("step.loss", "trl", {"batch": 65}, "64 rows at most"),
    ],
)
def test_no_script_is_written_of_what_it_could_not_show(
    check: str, framework: str, changes: dict[str, Any], reason: str
) -> None:
    spec = make_spec(framework, "tiny:qwen3", changes)
    generated = generate(check, spec=spec, family="qwen3", form="text", on_gpu=False)
    assert generated.script == ""
    assert reason in generated.reason


def test_a_script_is_python_for_every_family_and_check_and_knows_no_plumbline() -> None:
    written = [write_skeleton("trl")]
    for family in FAMILIES:
        for check in STEP_CHECKS:
            spec = make_spec("transformers", "tiny:x", {"accumulation": 4})
            written.append(generate(check, spec=spec, family=family, form=None, on_gpu=False).script)
    for form in ("text", "completion", "messages"):
        spec = make_spec("trl", "tiny:x", {"assistant_only": True})
        written.append(generate("data.mask", spec=spec, family="llama", form=form, on_gpu=False).script)
    for packing in (True, False):
        spec = make_spec("trl", "tiny:x", {"packing": packing})
        written.append(generate("data.packing", spec=spec, family="llama", form=None, on_gpu=False).script)
    for script in written:
        compile(script, "reproduce.py", "exec")
        assert "plumbline" not in script.lower()
        assert "expected" in script
        assert "observed" in script


def test_nothing_that_somebody_sent_becomes_code() -> None:
    spec = make_spec("transformers", "tiny:x", {}) | {"attention": '"); import os; ("'}
    script = generate("step.loss", spec=spec, family="llama", form=None, on_gpu=False).script
    assert "import os" not in script
    with pytest.raises(ValueError, match="invalid literal"):
        generate("step.loss", spec=spec | {"seed": "0); import os"}, family="llama", form=None, on_gpu=False)


def test_the_scripts_of_the_package_are_shipped() -> None:
    folder = Path(generate.__code__.co_filename).parent
    found = sorted(file.name for file in folder.glob("*.jinja"))
    assert found == ["mask.py.jinja", "skeleton.py.jinja", "step.py.jinja"]
