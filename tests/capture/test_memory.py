"""The meter of memory: what it counts, where it says that it was made, and that it leaves the run as it is."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from plumbline_capture.groups import count_copies, describe_groups
from plumbline_capture.live import BEFORE, LiveBytes, Place, storages_are_kept
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.capture.plain_lm import POSITIONS, ROWS, VOCABULARY, WIDTH, PlainLM
from tests.capture.running import PLAIN_LM, Recorded, run_plain, run_recorded

FLOAT = 4


def test_a_storage_counts_once_however_many_views_it_has_and_until_the_last_of_them_is_gone() -> None:
    assert storages_are_kept()
    with LiveBytes("cpu") as live:
        whole = torch.zeros(100)
        part = whole[:10].view(2, 5)
        assert live.live == 100 * FLOAT
        other = torch.ones(50, dtype=torch.float64)
        assert live.live == 100 * FLOAT + 50 * 8
        del whole
        assert live.live == 100 * FLOAT + 50 * 8
        del part
        assert live.live == 50 * 8
        other.add_(1.0)
        assert (live.live, live.peak) == (50 * 8, 100 * FLOAT + 50 * 8)
        del other
    assert live.live == 0


def test_what_was_alive_at_the_peak_is_known_after_it_was_freed() -> None:
    with LiveBytes("cpu") as live:
        kept = torch.zeros(10)
        torch.zeros(30)
        torch.zeros(20)
        assert live.peak == 40 * FLOAT
        assert sorted(block.shape for block in live.at_peak()) == [(10,), (30,)]
        live.restart_peak()
        assert live.peak == 10 * FLOAT
        more = torch.zeros(5)
        assert sorted(block.shape for block in live.at_peak()) == [(5,), (10,)]
        del kept, more


def test_what_a_forward_holds_is_what_autograd_saves() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    given = torch.randn(3, 8)
    own = {parameter.untyped_storage()._cdata for parameter in [*layers.parameters(), given]}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = layers(given).square().sum()
        total = sum(saved.values())
    del loss
    with LiveBytes("cpu") as live:
        live.name_role([*layers.parameters(), given], "parameter")
        before = live.live
        loss = layers(given).square().sum()
        assert live.live - before == total + FLOAT  # and the loss itself
        loss.backward()
        gradients = sum(p.numel() for p in layers.parameters()) * FLOAT
        assert live.live - before == gradients + FLOAT


def test_checkpointing_holds_less_and_its_recomputation_is_counted_in_the_backward() -> None:
    layer = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8))
    given = torch.randn(3, 8)
    with LiveBytes("cpu") as live:
        live.name_role([*layer.parameters(), given], "parameter")
        before = live.live
        plain = layer(given).sum()
        held = live.live - before
        del plain
        recomputed: Any = checkpoint(layer, given, use_reentrant=False).sum()
        assert live.live - before == FLOAT < held
        live.restart_peak()
        recomputed.backward()
        assert live.peak - before > held


def test_a_block_says_where_it_was_made_and_by_which_line() -> None:
    with LiveBytes("cpu") as live:
        live.modules.append("model.layers.0")
        live.place = Place("forward", 2, 1)
        made = torch.zeros(3, 4)
        (block,) = live.blocks()
        assert (block.shape, block.dtype, block.module) == ((3, 4), "torch.float32", "model.layers.0")
        assert (block.phase, block.step, block.micro_batch, block.operation) == ("forward", 2, 1, "aten.zeros.default")
        assert block.caller is not None
        assert block.caller.startswith("test_memory.py:test_a_block_says_where_it_was_made_and_by_which_line:")
        del made


def test_tensors_from_before_are_found_and_so_are_those_that_an_operation_is_given() -> None:
    early = torch.randn(7, 11)
    with LiveBytes("cpu") as live:
        assert live.name_role([early, early.t(), nn.Parameter(early)], "parameter") == 77 * FLOAT
        late = torch.from_numpy(early.numpy().copy())
        result = late + 1
        by_shape = {block.operation: block for block in live.blocks()}
        assert by_shape["unseen"].shape == (7, 11)
        assert live.live == 3 * 77 * FLOAT
        assert {block.role for block in live.blocks()} == {"parameter", None}
        del result
    with LiveBytes("cpu") as live:
        live.sweep()
        assert any(block.shape == (7, 11) and block.phase == BEFORE for block in live.blocks())


def test_what_is_made_while_it_is_paused_does_not_count_and_other_devices_do_not() -> None:
    with LiveBytes("cpu") as live:
        with live.paused():
            hidden = torch.zeros(1000)
        elsewhere = torch.zeros(1000, device="meta")
        assert (live.live, live.operations) == (0, 1)
        del hidden, elsewhere


def test_a_storage_that_is_resized_counts_with_its_new_size() -> None:
    with LiveBytes("cpu") as live:
        tensor = torch.zeros(10)
        tensor.resize_(30)
        assert (live.live, live.peak) == (30 * FLOAT, 30 * FLOAT)
        tensor.untyped_storage().resize_(0)
        tensor.detach()
        assert live.live == 0


def test_layers_of_one_kind_are_one_group_and_the_largest_comes_first() -> None:
    with LiveBytes("cpu") as live:
        tensors = [torch.zeros(1)]
        for index in range(3):
            live.modules[:] = [f"model.layers.{index}.mlp"]
            tensors.append(torch.zeros(4, 5))
        groups = describe_groups(live.blocks())
    assert [(group["count"], group["bytes"], group["shape"]) for group in groups] == [(3, 240, [4, 5]), (1, 4, [1])]
    assert groups[0]["module"] == "model.layers.0.mlp"


def test_copies_are_found_by_shape_each_block_once() -> None:
    with LiveBytes("cpu") as live:
        tensors = [torch.zeros(4, 5), torch.zeros(6), torch.zeros(6, dtype=torch.int64)]
        copies = count_copies(live.blocks(), [(4, 5), (6,), (6,), (2, 2)])
    assert (copies["matched"], copies["of"], copies["bytes"]) == (2, 4, 26 * FLOAT)
    assert copies["largest"]["shape"] == [4, 5]
    del tensors


@pytest.fixture(scope="module")
def everyday(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    out = tmp_path_factory.mktemp("memory") / "capture"
    return run_recorded(out, sys.executable, str(PLAIN_LM), "everyday", options=("--memory",))


def test_a_metered_run_ends_as_it_does_without(everyday: Recorded) -> None:
    plain = run_plain(sys.executable, str(PLAIN_LM), "everyday")
    assert (everyday.code, everyday.stdout) == (0, plain.stdout)
    assert everyday.manifest["missing"] == []


def test_no_tensors_are_recorded_but_the_batch(everyday: Recorded) -> None:
    assert {entry["kind"] for entry in everyday.manifest["tensors"]} == {"batch"}
    assert everyday.step(3)["optimizer"]["class"] == "torch.optim.adamw.AdamW"


def test_every_phase_of_every_step_is_there(everyday: Recorded) -> None:
    (memory,) = everyday.manifest["memory"]
    found = [(phase["step"], phase["micro_batch"], phase["phase"]) for phase in memory["phases"]]
    micro = [("forward", 0), ("backward", 0), ("between", 0), ("forward", 1), ("backward", 1), ("between", 1)]
    step = [("between", None), *micro, ("update", None)]
    assert found == [(number, index, name) for number in (1, 2, 3) for name, index in step]
    for before, after in zip(memory["phases"], memory["phases"][1:], strict=False):
        assert before["end_bytes"] <= before["peak_bytes"]
        if after["phase"] != "between" or after["micro_batch"] is not None:
            assert abs(after["begin_bytes"] - before["end_bytes"]) <= 8  # a number that was made meanwhile


def test_parameters_gradients_and_states_have_their_exact_bytes(everyday: Recorded) -> None:
    (memory,) = everyday.manifest["memory"]
    count = sum(parameter.numel() for parameter in PlainLM().parameters())
    tensors = len(list(PlainLM().parameters()))
    for moment in memory["settled"]:
        assert moment["parameter_bytes"] == moment["gradient_bytes"] == count * FLOAT
        begun = moment["step"] > 1 or moment["moment"] == "after the update"
        assert moment["state_bytes"] == (2 * count + tensors) * FLOAT * begun
        assert moment["buffer_bytes"] == 3 * FLOAT


def test_a_forward_holds_its_logits_and_what_checkpointing_leaves(everyday: Recorded) -> None:
    (memory,) = everyday.manifest["memory"]
    forward = next(phase for phase in memory["phases"] if (phase["step"], phase["phase"]) == (3, "forward"))
    shapes = {tuple(group["shape"]) for group in forward["left"]}
    assert (ROWS * (POSITIONS - 1), VOCABULARY) in shapes  # log-softmax
    assert (ROWS, POSITIONS, WIDTH) in shapes  # the layers' inputs
    assert (ROWS, POSITIONS, 2 * WIDTH) not in shapes  # inside of the checkpointed blocks
    assert forward["at_peak"]["bytes"] == forward["peak_bytes"]


def test_zero_grad_leaves_no_gradient_and_what_a_step_left_behind_is_told(everyday: Recorded) -> None:
    (memory,) = everyday.manifest["memory"]
    assert [(z["step"], z["set_to_none"], z["alive_bytes"]) for z in memory["zeroed"]] == [(2, True, 0), (3, True, 0)]
    (left,) = memory["settled"][-1]["survivors"]  # gradients of the other model, until its next backward
    assert (left["made_in"], left["bytes"]) == (2, (2 * 2 + 2) * FLOAT)


def test_a_compiled_model_is_not_metered_and_the_capture_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.mktemp("compiled") / "capture"
    done = run_recorded(out, sys.executable, str(PLAIN_LM), "compiled", options=("--memory", "--steps", "1"))
    assert done.manifest["memory"] == []
    assert "the model is compiled: what compiled code takes is not seen" in {m["why"] for m in done.manifest["missing"]}


def test_memory_is_not_asked_together_with_what_takes_memory(tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.mktemp("refused") / "capture"
    done = run_recorded(out, sys.executable, "-c", "pass", options=("--memory", "--full"))
    assert done.code == 3
    assert "--memory: what else is recorded takes memory" in done.stderr
