"""What the judges read: the runs of one validation, and the references computed on their captures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from checks.captures.capture import Capture
from checks.diagnosis.first_divergence import Divergence
from checks.memory.implied import Implied
from checks.parallel.tensors import NotJoined
from checks.parallel.united import unite
from checks.probes.answers import Answer
from checks.references.batch import MicroBatch
from checks.references.dataset import Dataset
from checks.references.definition import Definition
from checks.references.evaluation import Evaluation
from checks.references.initial import InitialAnswers
from checks.references.initial_tokens import TokenAnswers
from checks.references.mismatched import ReferencePoints
from checks.references.optimizer import learning_rate
from checks.references.reference import Reference
from checks.references.trajectory import Trajectory
from checks.roles import Role
from checks.serving.served import Served
from checks.spec import RunSpec


@dataclass(frozen=True)
class RunOutcome:
    """How one framework execution ended.

    `ending`: completed, failed, timed_out, out_of_memory or cancelled; `last_error`: the traceback's last line with its
    innermost frame; `capture`: None when nothing readable was recorded, and `unreadable` says why.
    """

    ending: str
    exit_code: int | None
    seconds: float
    last_error: str | None
    capture: Capture | None
    unreadable: str | None
    last_output: str = ""


@dataclass(frozen=True)
class Material:
    """Everything that was recorded and computed for one validation.

    `run`: the asked run. `others`: those that its checks need beside it, by their role. `batches`: captured step → its
    micro-batches; `references`: captured step → reference; `no_reference`: why a step has none. `divergence`: the first
    wrong module, found by a second pass after a failure. `definition`: the model class against its published
    definition.
    """

    spec: RunSpec
    run: RunOutcome
    others: Mapping[Role, RunOutcome] = field(default_factory=dict)
    batches: Mapping[int, tuple[MicroBatch, ...]] = field(default_factory=dict)
    references: Mapping[int, Reference] = field(default_factory=dict)
    no_reference: Mapping[int, str] = field(default_factory=dict)
    answers: Mapping[int, InitialAnswers] = field(default_factory=dict)
    """captured step → what the checkpoint's own weights say of its answers; `no_answers` says why there is none"""
    no_answers: Mapping[int, str] = field(default_factory=dict)
    token_answers: Mapping[int, TokenAnswers] = field(default_factory=dict)
    """captured step → what the checkpoint's own weights say of each token that counts; reasons in `no_answers`"""
    reference_points: Mapping[int, ReferencePoints] = field(default_factory=dict)
    """captured step → what kto holds gains against, of each micro-batch; reasons in `no_answers`"""
    expected_scalars: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    expected_adapters: tuple[str, ...] = ()
    asked_config: Mapping[str, object] = field(default_factory=dict)
    """the content of the asked model's config.json"""
    weight_decay_names: frozenset[str] = frozenset()
    router_biases: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """name → values in the checkpoint of the routers' biases that are buffers"""
    float32_names: frozenset[str] = frozenset()
    """parameters that the model's class keeps in float32 although the run asks for a narrower dtype"""
    total_steps: int = 0
    divergence: Divergence | None = None
    activations: Divergence | None = None
    """every module of the traced run on the input that it received; `no_activations` says why there is none"""
    no_activations: str = ""
    definition: Definition | None = None
    no_definition: str = ""
    probes: Mapping[str, Answer] = field(default_factory=dict)
    """name → what the prepared model answered to a probe, beside the reference; `no_probes` says why there is none"""
    no_probes: str = ""
    probes_shared: tuple[str, ...] = ()
    """code that the model and the reference of its probes have in common"""
    served: Served | None = None
    """what an endpoint answered to the probes' rows; None where none is configured"""
    evaluation: Evaluation | None = None
    """what the evaluation of the probed run should have said; `no_evaluation` says why there is none"""
    no_evaluation: str = ""
    trajectory: Trajectory | None = None
    """the losses that the asked run should have logged; `no_trajectory` says why there are none"""
    no_trajectory: str = ""
    overfit: Trajectory | None = None
    """those of the run on one batch; `no_overfit` says why there are none"""
    no_overfit: str = ""
    implied: Implied | None = None
    """what the shapes imply for the memory of the measured run; `no_implied` says why nothing was computed"""
    no_implied: str = ""
    dataset: Dataset | None = None
    """the samples as the model should read them; `no_dataset` says why there is none"""
    no_dataset: str = ""

    @property
    def capture(self) -> Capture | None:
        return self.run.capture

    @cached_property
    def _united(self) -> tuple[Capture | None, str]:
        if self.capture is None or not self.capture.ranks:
            return self.capture, ""
        try:
            return unite(self.capture, processes=self.spec.processes, dp_size=self.spec.dp_size), ""
        except NotJoined as error:
            return None, str(error)

    @property
    def extra_ranks(self) -> str:
        """What a person should state who asked for fewer processes than were recorded; empty where that is not so."""
        recorded = 0 if self.capture is None else len(self.capture.ranks)
        if recorded <= self.spec.processes:
            return ""
        return (
            f"{recorded} processes were recorded in a run that was asked to have {self.spec.processes}; say how they "
            "divide it: dp_size with sharding=ddp or fsdp2, tp_size, pp_size, cp_size or ep_size"
        )

    @property
    def whole(self) -> Capture | None:
        """What all ranks of the run recorded, as of one process; None where they are not one run's."""
        return self._united[0]

    def capture_of(self, role: Role) -> Capture | None:
        """What a run beside the asked one recorded; None where it did not run or left nothing readable."""
        outcome = self.others.get(role)
        return None if outcome is None else outcome.capture

    def asked_rate(self, step: int) -> float:
        """The learning rate that the asked schedule gives the `step`-th update."""
        spec = self.spec
        return learning_rate(
            spec.schedule, step, base_lr=spec.lr, warmup_steps=spec.warmup_steps, total_steps=self.total_steps
        )

    def why_not(self, step: int | None = None) -> str:
        """The reason why there is nothing trusted to compare with."""
        if self.run.capture is None:
            return "the run left no capture to judge; see run.completes"
        if not self.run.capture.steps:
            return "no optimizer step of the run was recorded; see run.completes"
        if self._united[1]:
            return self._united[1]
        if step is not None and step in self.no_reference:
            return self.no_reference[step]
        return next(iter(self.no_reference.values()), "no reference was computed")

    def first_reference(self) -> Reference | None:
        """The reference of the first captured step, the one that starts from the checkpoint."""
        return self.references[min(self.references)] if self.references else None
