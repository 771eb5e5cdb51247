"""References kept on disk: the same numbers come back, and a key names all that decides them."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from checks.assemble import assemble
from checks.captures.capture import Capture
from checks.material import Material
from checks.references.captured_state import captured_state
from checks.references.reference import Reference, compute_reference
from checks.references.stored import ReferenceStore, read_reference, reference_key, write_reference
from checks.registry import CHECKS
from checks.roles import Role
from checks.spec import RunSpec
from workers.judging import judge
from workers.report.as_json import describe_verdict


def first(material: Material) -> tuple[Capture, Reference]:
    capture, reference = material.capture, material.first_reference()
    assert capture is not None
    assert reference is not None
    return capture, reference


def key_of(
    material: Material, spec: RunSpec | None = None, *, reference: Reference | None = None, **changes: object
) -> str:
    capture, own = first(material)
    reference = reference or own
    arguments: dict[str, object] = {
        "source": reference.source,
        "state": captured_state(material.spec, capture, reference.step),
        "step": reference.step,
        "notes": reference.notes,
        "revision": "abc",
    }
    return reference_key(spec or material.spec, capture, reference.micro_batches, **(arguments | changes))  # type: ignore[arg-type]


def test_a_stored_reference_gives_bit_for_bit_the_same_verdicts(healthy: Material, tmp_path: Path) -> None:
    store = ReferenceStore(tmp_path, revision="abc")
    for _ in range(2):  # computed, then read
        material = assemble(
            healthy.spec, {Role.RUN: healthy.run, **healthy.others}, references=True, definition=True, refer=store
        )
        verdicts = judge(tuple(CHECKS.values()), material)
        expected = judge(tuple(CHECKS.values()), healthy)
        for name, verdict in verdicts.items():
            assert describe_verdict(replace(verdict, elapsed_s=0)) == describe_verdict(
                replace(expected[name], elapsed_s=0)
            )
    assert [held for _, held in store.used.values()] == [True, True]
    assert sorted(file.stem for file in tmp_path.iterdir()) == sorted(key for key, _ in store.used.values())


def test_every_field_comes_back(healthy: Material, tmp_path: Path) -> None:
    _, reference = first(healthy)
    write_reference(reference, tmp_path / "r.safetensors")
    again = read_reference(tmp_path / "r.safetensors", source=reference.source, micro_batches=reference.micro_batches)
    for field in fields(Reference):
        if field.name in ("gradients", "weights", "variants", "token_losses"):
            continue
        assert getattr(again, field.name) == getattr(reference, field.name), field.name
    for ours, theirs in zip(again.token_losses, reference.token_losses, strict=True):
        assert torch.equal(ours, theirs)
    for group in ("gradients", "weights"):
        mine, other = getattr(again, group), getattr(reference, group)
        assert list(mine) == list(other)
        for name, projection in mine.items():
            assert (projection.blocks, projection.norm) == (other[name].blocks, other[name].norm)
            assert torch.equal(projection.full, other[name].full)
            assert torch.equal(projection.sketch, other[name].sketch)
            assert torch.equal(projection.block_norms, other[name].block_norms)
    for variant, theirs in zip(again.variants, reference.variants, strict=True):
        assert (variant.name, variant.loss) == (theirs.name, theirs.loss)
        assert torch.equal(variant.token_errors, theirs.token_errors)
        assert {n: d.relative for n, d in variant.differences.items()} == {
            n: d.relative for n, d in theirs.differences.items()
        }
    assert again.token_floor == reference.token_floor
    assert not list(tmp_path.glob(".*"))


def test_expert_choices_come_back(packed: Material, tmp_path: Path) -> None:
    _, reference = first(packed)
    write_reference(reference, tmp_path / "r.safetensors")
    again = read_reference(tmp_path / "r.safetensors", source=reference.source, micro_batches=reference.micro_batches)
    assert again.choices == reference.choices


def test_the_key_is_the_same_for_the_same_step(healthy: Material) -> None:
    assert key_of(healthy) == key_of(healthy)
    # neither the learning rate nor the number of steps reaches the reference of a step
    assert key_of(healthy, replace(healthy.spec, lr=0.5, steps=7)) == key_of(healthy)


@pytest.mark.parametrize(
    "changes", [{"precision": "bf16"}, {"attention": "eager"}, {"lora_alpha": 3.0}], ids=lambda c: next(iter(c))
)
def test_the_key_follows_the_settings(healthy: Material, changes: dict[str, object]) -> None:
    assert key_of(healthy, replace(healthy.spec, **changes)) != key_of(healthy)  # type: ignore[arg-type]


def test_the_key_follows_the_checkpoint_the_batch_and_the_counted_tokens(healthy: Material) -> None:
    _, reference = first(healthy)
    head, *rest = reference.micro_batches
    moved = head.input_ids.clone()
    moved[0, 3] += 1
    uncounted = head.counted.clone()
    uncounted[0, 3] = False
    shorter = tuple(replace(document, stop=document.stop - 1) for document in head.documents)
    others = [
        replace(head, input_ids=moved),
        replace(head, counted=uncounted),
        replace(head, documents=shorter),
        replace(head, boundaries="mask"),
    ]
    keys = {key_of(healthy, reference=replace(reference, micro_batches=(other, *rest))) for other in others}
    keys |= {key_of(healthy), key_of(healthy, revision="abd"), key_of(healthy, notes=("another",))}
    keys |= {key_of(healthy, source=replace(reference.source, plain=not reference.source.plain))}
    assert len(keys) == len(others) + 4


def test_a_half_written_reference_is_never_found(
    healthy: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, reference = first(healthy)

    def full_disk(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_reference(reference, tmp_path / "r.safetensors")
    assert not (tmp_path / "r.safetensors").exists()


def test_a_store_computes_what_compute_reference_computes(healthy: Material, tmp_path: Path) -> None:
    capture, reference = first(healthy)
    arguments = {
        "source": reference.source,
        "state": captured_state(healthy.spec, capture, reference.step),
        "step": reference.step,
    }
    stored = ReferenceStore(tmp_path, revision="abc")(healthy.spec, capture, reference.micro_batches, **arguments)  # type: ignore[arg-type]
    assert stored.loss == compute_reference(healthy.spec, capture, reference.micro_batches, **arguments).loss  # type: ignore[arg-type]
