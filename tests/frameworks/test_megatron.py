"""Megatron: which rank holds what, under which name; what is refused; the command's options; the log."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from plumbline_capture.name_map import NameMap, read_name_map

from checks.errors import BadRequest, CaptureError
from checks.models import resolve_model
from checks.samples import read_samples, resolve_data
from checks.spec import RunSpec
from workers.frameworks import adapter
from workers.frameworks.megatron_core.adapter import MegatronCoreAdapter
from workers.frameworks.megatron_core.layout import Layout, Place, layout_of
from workers.frameworks.megatron_core.names import Shapes, build_name_map, read_shapes
from workers.frameworks.megatron_swift.adapter import HOOKS, MegatronSwiftAdapter, build_arguments
from workers.frameworks.megatron_swift.logs import read_log

pytestmark = pytest.mark.usefixtures("_shared_cache")

ADAPTER = MegatronSwiftAdapter()


def spec_of(model: str = "tiny:qwen3", **settings: object) -> RunSpec:
    path, data = resolve_model(model).path, resolve_data("gsm8k_sample")
    return RunSpec("megatron_swift", path, data, **settings)  # type: ignore[arg-type]


def maps(shapes: Shapes, layout: Layout, file: Path, *, style: str = "te") -> list[NameMap]:
    file.write_text(json.dumps(build_name_map(shapes, layout, style=style)))  # type: ignore[arg-type]
    return [read_name_map(file, rank=rank) for rank in range(layout.ranks)]


def test_ranks_are_counted_tensor_first_and_pipeline_last() -> None:
    layout = Layout(tp=2, cp=2, dp=2, pp=2)
    assert layout.place(0) == Place(tp=0, cp=0, dp=0, pp=0, ep=0)
    assert [layout.place(rank).tp for rank in range(4)] == [0, 1, 0, 1]
    assert [layout.place(rank).cp for rank in range(4)] == [0, 0, 1, 1]
    assert [layout.place(rank).dp for rank in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 0]
    assert [layout.place(rank).pp for rank in (0, 7, 8, 15)] == [0, 0, 1, 1]


def test_ranks_that_share_experts_train_on_rows_of_their_own() -> None:
    layout = layout_of(spec_of("tiny:qwen3_moe", ep_size=2, dp_size=2, sharding="ddp"))
    assert (layout.dp, layout.ranks) == (4, 4)
    assert [layout.place(rank).ep for rank in range(4)] == [0, 1, 0, 1]
    assert [layout.place(rank).dp for rank in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("model", ["qwen3", "qwen2", "llama", "qwen3_moe"])
@pytest.mark.parametrize("layout", [Layout(), Layout(tp=2), Layout(pp=2), Layout(tp=2, pp=2), Layout(cp=2)])
def test_all_ranks_together_hold_every_tensor_once(model: str, layout: Layout, tmp_path: Path) -> None:
    shapes = read_shapes(resolve_model(f"tiny:{model}").path)
    copies = layout.cp * layout.dp
    for style in ("te", "local"):
        counted = {name: torch.zeros(shape) for name, shape in shapes.tensors.items()}
        for names in maps(shapes, layout, tmp_path / "names.json", style=style):
            for name, held in names.held.items():
                counted[name][tuple(slice(*span) for span in held.box)] += 1
        for name, count in counted.items():
            divided = name.endswith(("_proj.weight", "_proj.bias", "embed_tokens.weight", "lm_head.weight"))
            expected = copies if divided else copies * layout.tp
            assert bool((count == expected).all()), (style, name)


def test_experts_are_divided_in_order_and_counted_from_zero_on_each_rank(tmp_path: Path) -> None:
    shapes = read_shapes(resolve_model("tiny:qwen3_moe").path)
    one, other = maps(shapes, Layout(dp=2, ep=2), tmp_path / "names.json")
    name, half = "model.layers.0.mlp.experts.gate_up_proj", shapes.experts // 2
    assert (one.held[name].box[0], other.held[name].box[0]) == ((0, half), (half, 2 * half))
    assert one.held[name].sources[0] == other.held[name].sources[0] == "decoder.layers.0.mlp.experts.linear_fc1.weight0"


def test_query_key_and_value_are_interleaved_by_group(tmp_path: Path) -> None:
    shapes = read_shapes(resolve_model("tiny:qwen3").path)
    size, per_group = shapes.head_size, shapes.heads // shapes.groups
    (names,) = maps(shapes, Layout(), tmp_path / "names.json")
    pieces = names.pieces_of("decoder.layers.1.self_attention.linear_qkv.weight")
    assert pieces is not None
    q, k, v, second = pieces[:4]
    assert [piece.name.split(".")[-2] for piece in (q, k, v, second)] == ["q_proj", "k_proj", "v_proj", "q_proj"]
    edges = [0, per_group * size, (per_group + 1) * size, (per_group + 2) * size]
    assert [piece.source[0] for piece in (q, k, v)] == list(pairwise(edges))
    assert second.source[0][0] == edges[3]
    assert second.target[0] == (per_group * size, 2 * per_group * size)


def test_rows_that_fill_up_the_vocabulary_are_padding(tmp_path: Path) -> None:
    shapes = read_shapes(resolve_model("tiny:qwen3").path, padded_vocabulary=640)
    one, other = maps(shapes, Layout(tp=2), tmp_path / "names.json")
    source = "embedding.word_embeddings.weight"
    assert [piece.name for piece in one.pieces_of(source) or ()] == ["model.embed_tokens.weight"]
    real, padding = other.pieces_of(source) or ()
    assert (real.source[0], real.target[0]) == ((0, 192), (320, 512))
    assert (padding.name, padding.source[0]) == ("", (192, 320))


def test_a_tied_head_of_the_last_stage_is_a_copy_of_the_embedding(tmp_path: Path) -> None:
    shapes = replace(read_shapes(resolve_model("tiny:qwen3").path), tied=True)
    first, last = maps(shapes, Layout(pp=2), tmp_path / "names.json")
    assert last.names_of("output_layer.weight") == ("model.embed_tokens.weight",)
    assert first.held["model.embed_tokens.weight"].box == last.held["model.embed_tokens.weight"].box
    (alone,) = maps(shapes, Layout(), tmp_path / "names.json")
    assert alone.pieces_of("output_layer.weight") is None


@pytest.mark.parametrize(
    ("model", "settings", "field"),
    [
        ("tiny:gemma3", {}, "model"),
        ("tiny:qwen3", {"precision": "bf16"}, "precision"),
        ("tiny:qwen3", {"lora": True}, "lora"),
        ("tiny:qwen3", {"dp_size": 2}, "sharding"),
        ("tiny:qwen3", {"dp_size": 2, "sharding": "fsdp2"}, "sharding"),
        ("tiny:qwen3", {"tp_size": 3}, "tp_size"),
        ("tiny:qwen3", {"pp_size": 4}, "pp_size"),
        ("tiny:qwen3", {"ep_size": 2}, "ep_size"),
        ("tiny:qwen3_moe", {"tp_size": 2}, "tp_size"),
        ("tiny:qwen3_moe", {"ep_size": 2, "accumulation": 3}, "accumulation"),
        ("tiny:qwen3", {"objective": "dpo"}, "objective"),
        ("tiny:qwen3", {"probed": True}, "checks"),
        ("tiny:qwen3", {"resume_after": 1, "dp_size": 2, "sharding": "ddp"}, "resume_after"),
        ("tiny:qwen3", {"options": ("perform_initialisation=true",)}, "options"),
        ("tiny:qwen3", {"options": ("use_distributed_optimizer=true",), "tp_size": 2}, "tp_size"),
    ],
)
def test_what_megatron_is_not_run_with_is_refused_by_name(model: str, settings: dict[str, object], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        ADAPTER.check(spec_of(model, **settings))
    assert refused.value.field == field


def test_other_frameworks_refuse_rows_without_padding() -> None:

    with pytest.raises(BadRequest, match="megatron_swift"):
        adapter("transformers").check(replace(spec_of(padding_free=True), framework="transformers"))


def test_the_options_say_what_was_asked(tmp_path: Path) -> None:
    spec = spec_of(
        "tiny:qwen3_moe", batch=3, accumulation=4, dp_size=2, sharding="ddp", ep_size=2, schedule="cosine", seed=5
    )
    ADAPTER.check(spec)
    sample = read_samples(spec.data)[0]
    options = build_arguments(spec, sample, output=tmp_path)
    assert (options["micro_batch_size"], options["global_batch_size"]) == (3, 24)
    assert (options["expert_model_parallel_size"], options["expert_tensor_parallel_size"]) == (2, 1)
    assert (options["fp16"], options["bf16"], options["moe_aux_loss_coeff"]) == (False, False, 0.0)
    assert (options["lr_decay_style"], options["seed"], options["data_seed"]) == ("cosine", 6, 5)
    assert (options["padding_free"], options["packing"]) == (False, False)
    assert "perform_initialization" not in options  # its default is what is judged
    assert build_arguments(replace(spec, packing=True), sample, output=tmp_path)["padding_free"] is True
    assert (options["no_save_optim"], options["no_save_rng"], options["use_distributed_optimizer"]) == (
        True,
        True,
        False,
    )
    resumed = build_arguments(replace(spec, resume_after=1), sample, output=tmp_path)
    assert (resumed["no_save_optim"], resumed["no_save_rng"]) == (False, False)
    given = replace(spec, options=("perform_initialization=true", "use_distributed_optimizer=true"))
    options = build_arguments(given, sample, output=tmp_path)
    assert (options["perform_initialization"], options["use_distributed_optimizer"]) == (True, True)


def test_a_line_of_the_log_has_the_rate_of_the_next_step(tmp_path: Path) -> None:
    lines = [
        {"loss": 2.5, "grad_norm": 1.25, "learning_rate": 0.5, "iteration": "1/2"},
        {"loss": 2.0, "grad_norm": 1.0, "learning_rate": 0.25, "iteration": "2/2"},
        {"last_model_checkpoint": "checkpoint-2"},
    ]
    (tmp_path / "logging.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second = read_log(tmp_path)
    assert (first.step, first.loss, first.grad_norm, first.learning_rate) == (1, 2.5, 1.25, None)
    assert (second.step, second.loss, second.grad_norm, second.learning_rate) == (2, 2.0, 1.0, 0.5)


@pytest.mark.parametrize("content", ["no json\n", '{"loss": 1.0, "iteration": "one"}\n'])
def test_a_log_that_is_none_says_so(tmp_path: Path, content: str) -> None:
    assert read_log(tmp_path) == ()  # of a run that broke off before its first step
    (tmp_path / "logging.jsonl").write_text(content)
    with pytest.raises(CaptureError, match="is no log of Megatron-SWIFT"):
        read_log(tmp_path)


def test_a_context_parallel_rank_has_an_early_and_a_late_chunk_of_each_sequence() -> None:
    hooks = runpy.run_path(str(HOOKS.parent.parent / "megatron_core" / "hooks.py"))
    assert hooks["own_positions"]([0, 8, 12], cp_size=2, cp_rank=0).tolist() == [0, 1, 6, 7, 8, 11]
    assert hooks["own_positions"]([0, 8, 12], cp_size=2, cp_rank=1).tolist() == [2, 3, 4, 5, 9, 10]


def test_the_mask_of_padding_is_read_off_the_mask_of_attention() -> None:
    hooks = runpy.run_path(str(HOOKS.parent.parent / "megatron_core" / "hooks.py"))
    masked = ~torch.tril(torch.ones(2, 1, 3, 3, dtype=torch.bool))
    masked[1, :, :, 2:] = True  # the second row has two tokens
    batch = hooks["as_rows"](
        {
            "input_ids": torch.zeros(2, 3, dtype=torch.int64),
            "attention_mask": masked,
            "attention_mask_2d": torch.ones(2, 3),
            "text_position_ids": torch.arange(3).expand(2, 3),
        }
    )
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert sorted(batch) == ["attention_mask", "input_ids", "position_ids"]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"packing": True}, "packing"),
        ({"cp_size": 2}, "cp_size"),
        ({"padding_free": True}, "padding_free"),
        ({"resume_after": 1}, "checks"),
        ({"options": ("perform_initialization=true",)}, "options"),
    ],
)
def test_what_only_megatron_swift_runs_is_refused_by_megatron_core(settings: dict[str, object], field: str) -> None:
    spec = replace(spec_of(**settings), framework="megatron_core")
    with pytest.raises(BadRequest) as refused:
        MegatronCoreAdapter().check(spec)
    assert refused.value.field == field


def test_parameters_are_filled_with_their_pieces_of_the_checkpoint(tmp_path: Path) -> None:
    driver = runpy.run_path(str(HOOKS.parent.parent / "megatron_core" / "train.py"))
    tensors = {
        f"experts.{e}.{part}.weight": torch.full((2, 3), 10.0 * e + n)
        for e in range(2)
        for n, part in enumerate(("gate_proj", "up_proj", "down_proj"))
    }
    stacked = driver["read"](tensors, "experts.gate_up_proj")
    assert stacked.shape == (2, 4, 3)
    assert stacked[1, :, 0].tolist() == [10.0, 10.0, 11.0, 11.0]
    assert driver["read"](tensors, "experts.down_proj")[:, 0, 0].tolist() == [2.0, 12.0]


def test_the_loss_is_the_sum_over_the_counted_tokens() -> None:
    driver = runpy.run_path(str(HOOKS.parent.parent / "megatron_core" / "train.py"))
    total, number, logged = driver["add_up"](torch.tensor([[1.0, 2.0, 4.0]]), labels=torch.tensor([[3, -100, 5]]))
    assert (float(total), int(number), logged.tolist()) == (5.0, 2, [5.0, 2.0])


def test_a_rank_of_the_distributed_optimizer_gives_what_it_has_reduced() -> None:
    hooks = runpy.run_path(str(HOOKS.parent.parent / "megatron_core" / "hooks.py"))
    first, second = (torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 3), (4,)))
    for parameter in (first, second):
        parameter.main_grad = torch.arange(1.0, 1.0 + parameter.numel()).view(parameter.shape)  # type: ignore[attr-defined]
    whole = torch.zeros(12)  # 6, 4, and 2 that fill the bucket up

    def give(rank: int) -> list[list[float]]:
        group = SimpleNamespace(size=lambda: 2, rank=lambda: rank)
        places = {first: (0, 6, 0), second: (6, 10, 0)}
        bucket = SimpleNamespace(grad_data=whole, offset=0)
        buffer = SimpleNamespace(data_parallel_group=group, param_index_map=places, buckets=[bucket])
        model = SimpleNamespace(buffers=[buffer], expert_parallel_buffers=[])
        reduced = hooks["find_reduced"](model)
        return [hooks["read_gradient"](parameter, reduced).flatten().tolist() for parameter in (first, second)]

    assert give(0) == [[1, 2, 3, 4, 5, 6], [0, 0, 0, 0]]
    assert give(1) == [[0, 0, 0, 0, 0, 0], [1, 2, 3, 4]]
    whole = torch.zeros(8)  # of which each rank has four: the second rank the rest of the first parameter too
    assert give(0) == [[1, 2, 3, 4, 0, 0], [0, 0, 0, 0]]
    assert give(1) == [[0, 0, 0, 0, 5, 6], [1, 2, 0, 0]]
    assert hooks["read_gradient"](second, None) is second.main_grad


def test_without_transformer_engine_or_a_stand_in_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    for name in ("swift", "mcore_bridge", "megatron/core"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PLUMBLINE_FRAMEWORK_PYTHON", str(python))
    monkeypatch.delenv("PLUMBLINE_SHIMS", raising=False)
    with pytest.raises(BadRequest, match="Transformer Engine, of whose layers mcore-bridge builds every model, is not"):
        ADAPTER.prepare(spec_of(), tmp_path / "scratch")
    shims = Path(__file__).parent / "shims" / "transformer_engine.py"
    monkeypatch.setenv("PLUMBLINE_SHIMS", str(shims))
    assert ADAPTER.prepare(spec_of(), tmp_path / "scratch").hooks == (HOOKS,)
