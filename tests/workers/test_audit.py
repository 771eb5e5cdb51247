"""plumbline audit: what is read, what is found, and the files it writes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.catalogue import load_problems
from checks.errors import BadRequest
from workers import cli
from workers.audit.audit import Audit, audit
from workers.audit.command import read_pins
from workers.audit.files import MAX_BYTES
from workers.audit.interpreters import read_interpreter
from workers.audit.inventory import Inventory
from workers.audit.requirements import read_requirements
from workers.audit.sarif import build_log

OLD = "transformers==4.45.2\ntrl==0.15.2\npeft==0.17.1\n"
NEWEST = {"transformers": "5.24.0", "trl": "1.16.0", "peft": "0.21.2", "accelerate": "1.15.0"}
UNMENDED = {"open": "open upstream", "closed-not-fixed": "closed, not fixed"}
MUST_NAME = {"hf-ga-mean-of-means", "trl-sft-eos-masked-as-pad", "peft-rslora-scale-reset"}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = cli.main(["audit", *arguments])
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def write(tmp_path: Path, content: str, name: str = "requirements.txt") -> Path:
    file = tmp_path / name
    file.write_text(content)
    return file


def of(packages: dict[str, str]) -> Audit:
    return audit(Inventory("here", packages, {}, ()), load_problems())


def test_old_releases_are_named_with_links_and_mended_releases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = write(tmp_path, OLD), tmp_path / "audit.json"
    code, shown, _ = run(capsys, "--requirements", str(file), "--json", str(out))
    assert code == 1
    document = json.loads(out.read_text())
    found = {each["slug"]: each for each in document["affecting"]}
    assert found.keys() >= MUST_NAME
    expected = {
        "hf-ga-mean-of-means": ("transformers", "4.45.2", "4.46.0", 1),
        "peft-rslora-scale-reset": ("peft", "0.17.1", "0.18.0", 3),
    }
    for slug, (package, version, fixed_in, line) in expected.items():
        each = found[slug]
        assert (each["package"], each["version"], each["fixed_in"], each["line"]) == (package, version, fixed_in, line)
        assert each["file"] == str(file)
    lines = shown.splitlines()
    for each in document["affecting"]:
        (row,) = (line for line in lines if f" {each['slug']} " in line)
        assert each["url"] in row
        assert (each["fixed_in"] or UNMENDED[each["status"]]) in row
        assert ("▲ silent" in row) is each["silent"]
    silent = [each["silent"] for each in document["affecting"]]
    assert silent == sorted(silent, reverse=True)


def test_of_the_newest_releases_nothing_is_named_that_is_mended(capsys: pytest.CaptureFixture[str]) -> None:
    result = of(NEWEST)
    assert {standing.problem.status.value for standing in result.affecting} <= {"open", "closed-not-fixed"}
    assert {standing.fixed_in for standing in result.affecting} <= {None}
    assert len(result.not_affecting) > 50


def test_the_counts_add_up_to_the_catalogue() -> None:
    for packages in (NEWEST, {"ms-swift": "4.2.0", "transformers": "4.57.0", "peft": "0.18.1"}, {"numpy": "2.0"}):
        result = of(packages)
        parts = (result.affecting, result.not_affecting, result.unknown)
        assert sum(map(len, parts)) + result.elsewhere == len(load_problems()) == 415


def test_the_exit_code_is_that_of_the_silent_problems() -> None:
    silent = of({"accelerate": "1.14.0"})
    assert (silent.exit_code, [s.problem.slug for s in silent.silent]) == (1, ["accelerate-skip-batches-resets-epoch"])
    only_loud = audit(
        Inventory("here", {"accelerate": "1.12.0"}, {}, ()),
        [each for each in load_problems() if each.slug == "accelerate-fsdp2-optimizer-load"],
    )
    assert (len(only_loud.affecting), only_loud.exit_code) == (1, 0)
    assert of({"numpy": "2.0"}).exit_code == 0


def test_counts_and_what_was_not_judged_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "accelerate==1.15.0\ntorch>=2.6\n")
    code, shown, _ = run(capsys, "--requirements", str(file))
    assert code == 0
    assert shown.splitlines() == [
        f"{file}: 1 packages",
        f"not pinned, not judged: {file}, line 2: torch>=2.6 (it names no exact version)",
        "known problems that affect these releases: 0 (0 silent, 0 that show themselves)",
        *shown.splitlines()[3:],
    ]
    result = of({"accelerate": "1.15.0"})
    assert shown.splitlines()[3:] == [
        f"that do not: {len(result.not_affecting)}",
        f"unknown: {len(result.unknown)} (it is not known which releases they affect, or not of ones this new)",
        f"of packages that are not here: {result.elsewhere}",
    ]


def pins(file: Path) -> dict[str, tuple[str, int]]:
    return {name: (pin.version, pin.line) for name, pin in read_pins(file).pins.items()}


def test_every_form_of_a_pinned_line_is_read(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "# a comment\n"
        "\n"
        "--index-url https://example.org/simple\n"
        "Transformers == 4.45.2  # why\n"
        "trl[peft,quality]==0.15.2 \\\n"
        "    --hash=sha256:aaaa \\\n"
        "    --hash=sha256:bbbb\n"
        "ms_swift===3.0.0; python_version >= '3.8'\n"
        "a.b-c_d==1!2.0.post1+local\n"
        "one==1.0 --hash=sha256:cc\n"
        "last==2.0",
    )
    assert pins(file) == {
        "transformers": ("4.45.2", 4),
        "trl": ("0.15.2", 5),
        "ms-swift": ("3.0.0", 8),
        "a-b-c-d": ("1!2.0.post1+local", 9),
        "one": ("1.0", 10),
        "last": ("2.0", 11),
    }
    assert read_pins(file).unjudged == ()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("torch", "it names no exact version"),
        ("torch>=2.6", "it names no exact version"),
        ("torch==2.*", "it names no exact version"),
        ("torch==2.6,!=2.6.1", "it names no exact version"),
        ("torch==2.6; python_version < '3.0'", "its marker does not hold for this Python"),
        ("torch==2.6; extra == 'dev'", "its marker does not hold for this Python"),
        ("torch @ https://example.org/torch-2.6-py3-none-any.whl", "it is an address or a path, not a release"),
        ("-e git+https://example.org/torch.git@main#egg=torch", "it is an address or a path, not a release"),
        ("--editable ./here", "it is an address or a path, not a release"),
        ("git+https://example.org/torch.git", "it is an address or a path, not a release"),
        ("./torch-2.6-py3-none-any.whl", "it is an address or a path, not a release"),
        ("-r https://example.org/requirements.txt", "it is a file elsewhere, which is not fetched"),
        ("torch 2.6", "it is no requirement"),
    ],
)
def test_a_line_without_an_exact_release_is_named_and_not_judged(tmp_path: Path, line: str, why: str) -> None:
    inventory = read_pins(write(tmp_path, f"trl==1.0\n{line}\n"))
    assert dict(inventory.packages) == {"trl": "1.0"}
    (found,) = inventory.unjudged
    assert (found.line, found.why) == (2, why)


def test_nested_files_are_read_once_each_and_named_where_they_pin(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    write(tmp_path, "-r ../requirements.txt\npeft==0.17.1\n", "more/base.txt")
    write(tmp_path, "trl==0.15.2\ntransformers==4.45.2\n", "constraints.txt")
    file = write(tmp_path, "-r more/base.txt\n-cconstraints.txt\n--constraint=constraints.txt\ntrl\n")
    inventory = read_pins(file)
    assert {name: (pin.file.name, pin.line) for name, pin in inventory.pins.items()} == {
        "peft": ("base.txt", 2),
        "trl": ("constraints.txt", 1),
        "transformers": ("constraints.txt", 2),
    }
    assert inventory.unjudged == ()  # trl has its version from the constraints


@pytest.mark.parametrize("mark", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_of_other_shells_are_read(tmp_path: Path, mark: str) -> None:
    file = tmp_path / "frozen.txt"
    file.write_bytes("transformers==4.45.2\r\ntrl==0.15.2\r\n".encode(mark))
    assert pins(file) == {"transformers": ("4.45.2", 1), "trl": ("0.15.2", 2)}


def test_lock_files_are_read_with_the_line_of_each_package(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        'version = 1\n\n[[package]]\nname = "Transformers"\nversion = "4.45.2"\n\n'
        '[[package]]\nname = "here"\nsource = { editable = "." }\n\n'
        '[[package]]\nname = "trl"\nversion = "0.15.2"\n[package.dependencies]\ntorch = "*"\n',
        "uv.lock",
    )
    assert pins(file) == {"transformers": ("4.45.2", 3), "trl": ("0.15.2", 11)}
    (unjudged,) = read_pins(file).unjudged
    assert (unjudged.text, unjudged.line, unjudged.why) == ("here", 7, "it names no exact version")
    standard = write(tmp_path, 'lock-version = "1.0"\n[[packages]]\nname = "trl"\nversion = "1.0"\n', "pylock.toml")
    assert pins(standard) == {"trl": ("1.0", 2)}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "holds no requirement"),
        (b"\n# only a comment\n", "holds no requirement"),
        (b"This is a letter, not a list.\n", "holds no requirement"),
        (b"torch>=2\n", "pins no package to an exact version; give the output of `pip freeze`."),
        (b"trl==1.0\ntrl==1.1\n", "pins trl to 1.0 in "),
        (b"\x7fELF\x02\x01\x01\x00\x00", "is binary"),
        (b"\xff\x00\xfe\x00trl==1.0", "is not text in UTF-8"),
        (b'{"default": {}}', "is JSON or XML"),
        (b"[[package]]\nname = \n", "is no TOML"),
        (b'[[package]]\nversion = "1.0"\n', "a package has no name; make the lock file again."),
        (b"-r missing.txt\n", "missing.txt does not exist"),
        (b"-r .\n", "is a directory"),
    ],
)
def test_bad_input_is_code_3_and_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, sentence: str
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_bytes(content)
    code, out, err = run(capsys, "--requirements", str(file))
    assert (code, out) == (3, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_what_is_no_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, sentence in (
        (tmp_path / "missing", "does not exist; give a requirements file, a lock file or the output of `pip freeze`."),
        (tmp_path, "is a directory; name the file in it."),
        (pipe, "is not a regular file"),
    ):
        code, _, err = run(capsys, "--requirements", str(path))
        assert (code, err.count("\n")) == (3, 1)
        assert err.startswith("plumbline: requirements: ")
        assert sentence in err


def test_a_file_of_100_mb_is_refused_without_being_read_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "requirements.txt"
    with file.open("wb") as stream:
        stream.truncate(100 * 10**6)
    code, _, err = run(capsys, "--requirements", str(file))
    assert code == 3
    assert f"is larger than {MAX_BYTES // 2**20} MiB, and so no list of packages" in err


def test_files_that_include_each_other_without_end_are_refused(tmp_path: Path) -> None:
    for number in range(120):
        write(tmp_path, f"-r {number + 1}.txt\ntrl==1.0\n", f"{number}.txt")
    with pytest.raises(BadRequest, match="includes more than 100 files"):
        read_pins(tmp_path / "0.txt")


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        inventory = read_requirements(Path("requirements.txt"), text.replace("-r", "").replace("-c", ""))
    except BadRequest:
        return
    assert inventory.packages
    assert all(pin.line >= 1 for pin in inventory.pins.values())


def test_this_interpreter_is_audited_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "audit.json"
    code, shown, _ = run(capsys, "--json", str(out))
    document = json.loads(out.read_text())
    assert document["source"] == sys.executable
    assert shown.startswith(f"{sys.executable}: {len(document['packages'])} packages")
    assert {"transformers", "trl", "peft", "accelerate", "plumbline"} <= document["packages"].keys()
    assert code == document["exit_code"]


def test_another_interpreter_is_asked_by_path_or_directory(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    site = next((tmp_path / "env" / "lib").glob("python3*")) / "site-packages"
    for name, version in (("Trl", "0.15.2"), ("peft", "0.17.1")):
        (site / f"{name}-{version}.dist-info").mkdir()
        (site / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (site / "broken-1.0.dist-info").mkdir()
    for named in (tmp_path / "env", tmp_path / "env" / "bin" / "python"):
        assert dict(read_interpreter(str(named)).packages) == {"trl": "0.15.2", "peft": "0.17.1"}


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("#!/bin/sh\nexit 7\n", "ended with exit code 7 (it said nothing)"),
        ("#!/bin/sh\necho broken >&2\nexit 1\n", "ended with exit code 1 (broken)"),
        ("#!/bin/sh\necho hello\n", "did not answer with a list of packages"),
        ("#!/bin/sh\necho '[1, 2]'\n", "did not answer with a list of packages"),
        ("no program\n", "cannot be started"),
    ],
)
def test_what_is_no_python_is_refused(tmp_path: Path, script: str, sentence: str) -> None:
    file = write(tmp_path, script, "python")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(BadRequest) as caught:
        read_interpreter(str(file))
    assert sentence in str(caught.value)
    assert str(caught.value).endswith("; give a Python 3.8 or newer, or its virtual environment.")


def test_an_interpreter_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--python", str(tmp_path / "missing"))
    assert (code, err.count("\n")) == (3, 1)
    assert "missing does not exist; give a Python 3.8 or newer" in err
    code, _, err = run(capsys, "--python", str(tmp_path))
    assert code == 3
    assert "is a directory without bin/python" in err


def test_both_options_together_are_a_bad_request(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--python", "python3", "--requirements", "x")
    assert code == 3
    assert "not allowed with argument" in err


def test_a_file_that_cannot_be_written_is_told_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--json", "--sarif"):
        code, out, err = run(capsys, option, str(tmp_path / "no" / "file"))
        assert (code, out) == (3, "")
        assert err.startswith(f"plumbline: {option[2:]}: ")


def test_the_json_document_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "audit.json"
    run(capsys, "--requirements", str(write(tmp_path, OLD + "torch\n")), "--json", str(out))
    document = json.loads(out.read_text())
    assert (document["schema"], document["version"], document["exit_code"]) == ("plumbline-audit", 1, 1)
    counts = document["counts"]
    assert counts["affecting"] == len(document["affecting"])
    assert counts["affecting_silent"] == sum(each["silent"] for each in document["affecting"])
    for name in ("not_affecting", "unknown"):
        assert counts[name] == len(document[name])
    assert sum(counts[name] for name in ("affecting", "not_affecting", "unknown", "other_packages")) == 415
    assert document["packages"] == {"peft": "0.17.1", "transformers": "4.45.2", "trl": "0.15.2"}
    (unjudged,) = document["not_judged"]
    assert (unjudged["text"], unjudged["line"], unjudged["why"]) == ("torch", 4, "it names no exact version")
    means = next(each for each in document["affecting"] if each["slug"] == "hf-ga-mean-of-means")
    assert (means["affected"], means["needs"], means["status"]) == ("<4.46.0", {}, "fixed")
    assert means["source"]
    assert means["url"] == "https://github.com/huggingface/transformers/pull/34191"


def sarif(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> dict[str, Any]:
    out = tmp_path / "audit.sarif"
    run(capsys, "--requirements", str(write(tmp_path, content, "a b.txt")), "--sarif", str(out))
    log = json.loads(out.read_text())
    assert log["version"] == "2.1.0"
    (only,) = log["runs"]
    found: dict[str, Any] = only
    return found


def test_sarif_has_a_rule_for_each_problem_and_a_result_at_each_pin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = sarif(tmp_path, capsys, "numpy==2.0\n" + OLD)
    rules = log["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    results = {result["ruleId"]: result for result in log["results"]}
    assert results.keys() >= MUST_NAME
    for slug, result in results.items():
        rule = rules[result["ruleIndex"]]
        assert rule["id"] == slug
        assert rule["helpUri"].startswith("https://")
        assert rule["defaultConfiguration"]["level"] == result["level"]
        assert result["level"] == ("error" if "silent" in rule["properties"]["tags"] else "warning")
    (location,) = results["hf-ga-mean-of-means"]["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "a%20b.txt"
    assert location["physicalLocation"]["region"] == {"startLine": 2}
    assert "fixed in 4.46.0" in results["hf-ga-mean-of-means"]["message"]["text"]
    prints = [result["partialFingerprints"]["plumblineProblem/v1"] for result in results.values()]
    assert len(set(prints)) == len(prints)


def test_sarif_of_an_interpreter_names_the_release_and_a_file_elsewhere_its_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, *_) = build_log(of({"accelerate": "1.14.0"}))["runs"][0]["results"]
    assert first["locations"] == [{"logicalLocations": [{"fullyQualifiedName": "accelerate==1.14.0"}]}]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    log = sarif(tmp_path, capsys, "accelerate==1.14.0\n")
    (location,) = log["results"][0]["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == (tmp_path / "a b.txt").as_uri()


def test_the_catalogue_is_read_without_torch() -> None:
    code = "import sys; from checks.catalogue import load_problems; load_problems(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
