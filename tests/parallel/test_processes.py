"""What may be asked of several processes, how they are started, and that none of them outlives its run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest

from checks.errors import BadRequest
from checks.models import resolve_model
from checks.samples import resolve_data
from checks.spec import RunSpec
from workers.frameworks import adapter
from workers.frameworks.interpreter import framework_python
from workers.frameworks.processes import build_launch, choose_devices
from workers.runner import supervise
from workers.settings import parse_settings

SLEEP = """
import os, time
from pathlib import Path
Path(os.environ["NOTES"], os.environ["RANK"]).write_text(f"{os.getpid()} {os.environ['WORLD_SIZE']}")
time.sleep(600)
"""


def ask(framework: str, family: str = "qwen3", **settings: object) -> RunSpec:
    model = resolve_model(f"tiny:{family}").path
    return RunSpec(framework, model, resolve_data("gsm8k_sample"), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("framework", "settings", "said"),
    [
        ("plain", {"dp_size": 2}, "sharding: none does not say what each of 2 ranks holds; set ddp or fsdp2."),
        ("plain", {"sharding": "ddp"}, "sharding: ddp has nothing to divide; set dp_size to 2 or more, or none."),
        (
            *("plain", {"dp_size": 2, "tp_size": 2, "sharding": "ddp"}),
            "tp_size: dp_size is above 1 too; divide along one axis at a time.",
        ),
        ("plain", {"tp_size": 4}, "tp_size: 4 does not divide num_key_value_heads 2; set tp_size to a divisor of 2."),
        (
            *("plain", {"ep_size": 2}),
            "ep_size: the plain loop cannot divide experts of qwen3; "
            "set ep_size=1 or give a model of deepseek_v3, glm4_moe, qwen3_moe.",
        ),
        ("plain", {"packing": True}, "packing: the plain loop does not pack; set packing=false or framework trl."),
        ("plain", {"lora": True}, "lora: the plain loop has no adapters; set lora=false or framework transformers."),
        (
            *("plain", {"resume_after": 1}),
            "resume_after: the plain loop saves only what another layout is to load; "
            "use framework transformers or trl.",
        ),
        (
            *("transformers", {"dp_size": 2, "sharding": "fsdp2"}),
            "sharding: fsdp2 is ignored by transformers' Trainer on a CPU, in silence; "
            "set sharding=ddp or framework plain.",
        ),
        (
            *("transformers", {"tp_size": 2}),
            "tp_size: transformers' Trainer refuses tensor parallel on a CPU; set tp_size=1 or framework plain.",
        ),
        (
            *("transformers", {"ep_size": 2}),
            "ep_size: transformers' Trainer refuses expert parallel on a CPU; set ep_size=1 or framework plain.",
        ),
        *(
            (
                framework,
                {axis: 2},
                f"{axis}: {named} divides nothing along it; set {axis}=1, or use framework automodel.",
            )
            for framework, named in (("plain", "the plain loop"), ("transformers", "transformers' Trainer"))
            for axis in ("pp_size", "cp_size")
        ),
        (
            *("transformers", {"dp_size": 2, "sharding": "ddp", "resume_after": 1}),
            "resume_after: a run of 2 processes is not resumed; set all degrees to 1.",
        ),
        (
            *("trl", {"dp_size": 2, "sharding": "ddp"}),
            "dp_size: trl is run as one process; set dp_size=1, or use framework transformers or plain.",
        ),
    ],
)
def test_what_a_framework_cannot_divide_is_refused(framework: str, settings: dict[str, object], said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        adapter(framework).check(ask(framework, **settings))
    assert str(caught.value) == said


def test_experts_are_divided_where_the_family_has_some() -> None:
    adapter("plain").check(ask("plain", "qwen3_moe", ep_size=2))
    with pytest.raises(BadRequest, match="tp_size: the plain loop cannot divide the matrices of qwen3_moe"):
        adapter("plain").check(ask("plain", "qwen3_moe", tp_size=2))
    with pytest.raises(
        BadRequest, match=r"ep_size: 3 does not divide num_(local_)?experts 4; set ep_size to a divisor of 4"
    ):
        adapter("plain").check(ask("plain", "qwen3_moe", ep_size=3))


def test_degrees_are_settings_with_bounds() -> None:
    assert parse_settings(["dp_size=2", "sharding=fsdp2"], defaults={}) == {"dp_size": 2, "sharding": "fsdp2"}
    for text, said in (
        ("tp_size=0", "tp_size: 0 is out of bounds; set it to 1 or more and at most 64."),
        ("ep_size=65", "ep_size: 65 is out of bounds; set it to 1 or more and at most 64."),
        ("sharding=zero", "sharding: 'zero' is none of its values; use none or ddp or fsdp2."),
    ):
        with pytest.raises(BadRequest) as caught:
            parse_settings([text], defaults={})
        assert str(caught.value) == said


def test_one_process_is_started_as_before_and_several_by_torchrun(tmp_path: Path) -> None:
    driver, file = Path("train.py"), Path("config.json")
    assert build_launch(driver, file, processes=1) == (framework_python(), "-u", "train.py", "config.json")
    command = build_launch(driver, file, processes=3)
    assert command[2:4] == ("-m", "torch.distributed.run")
    assert {"--standalone", "--nproc-per-node=3"} <= set(command)
    assert command[-2:] == ("train.py", "config.json")
    launch = adapter("plain").prepare(ask("plain", dp_size=2, sharding="ddp"), tmp_path)
    assert "--nproc-per-node=2" in launch.command
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["dp_size"], written["tp_size"], written["sharding"]) == (2, 1, "ddp")


@pytest.mark.parametrize(
    ("visible", "processes", "seen"),
    [(None, 1, "0"), (None, 2, "0,1"), ("3,1,2", 2, "3,1"), ("3", 2, "3"), ("", 2, "")],
)
def test_each_process_sees_a_device_of_its_own(
    visible: str | None, processes: int, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices = choose_devices(processes)
    assert devices["CUDA_VISIBLE_DEVICES"] == seen
    assert ("GLOO_SOCKET_IFNAME" in devices) is (processes > 1)


def test_a_run_that_is_ended_takes_all_of_torchruns_workers_with_it(tmp_path: Path) -> None:
    script = tmp_path / "sleep.py"
    script.write_text(SLEEP)
    notes = [tmp_path / "0", tmp_path / "1"]
    end = supervise(
        build_launch(script, tmp_path / "config.json", processes=2),
        cwd=tmp_path,
        environment={"PATH": os.environ["PATH"], "NOTES": str(tmp_path), **choose_devices(2)},
        log=tmp_path / "log",
        time_limit_s=120.0,
        memory_limit_bytes=None,
        on_line=lambda line: None,
        cancelled=lambda: all(note.exists() and note.read_text() for note in notes),
    )
    assert end.ending == "cancelled"
    pids, sizes = zip(*(note.read_text().split() for note in notes), strict=True)
    assert sizes == ("2", "2")
    assert [pid for pid in map(int, pids) if psutil.pid_exists(pid)] == []
