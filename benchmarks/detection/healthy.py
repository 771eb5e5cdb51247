"""Healthy variants: what a run may choose without being wrong, over every tiny family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from benchmarks.detection.case import DATA, TWO_RUNS, Case
from benchmarks.detection.causes import LEFT_OUT
from benchmarks.detection.expected import BALANCED
from checks.errors import BadRequest
from checks.models import FAMILIES
from checks.roles import Role
from workers.frameworks import adapter


@dataclass(frozen=True)
class Shape:
    """Settings that each family is run with."""

    name: str
    framework: str
    settings: tuple[str, ...] = ()
    data: str = DATA
    resumed: bool = False
    probed: bool = False
    traced: bool = False
    measured: bool = False


PROBED = ("qwen3", "llama", "gemma3_text", "deepseek_v3", "glm4_moe", "qwen2")
"""Families whose plain run is probed too: a probe's float64 reference up to 2,048 tokens costs ten times a step's."""

MEASURED = ("qwen3", "llama", "gemma3_text", "qwen3_moe", "deepseek_v3", "gpt_oss")
"""Families whose memory is counted too."""

SCALED = ("qwen3", "llama", "gemma3_text", "qwen3_moe", "deepseek_v3")
"""Families that the plain loop trains in float16 with a loss scale: on a CPU the other frameworks do not."""

LONG = ("qwen3", "llama", "gemma3_text", "qwen2")
"""Families whose whole curve is judged: a reference trained ten times over costs ten times a step's too."""

RESUMED = ("qwen3", "llama", "gemma3_text", "qwen2", "mistral", "qwen3_5_text")
"""Families whose plain run and whose adapters are saved and resumed too; for the others see `causes.LEFT_OUT`."""

SHAPES = (
    Shape("plain", "transformers", resumed=True, probed=True, traced=True, measured=True),
    Shape("one-row", "trl", ("batch=1", "accumulation=4"), measured=True),
    Shape("eager-sgd", "transformers", ("attention=eager", "batch=4", "accumulation=1", "optimizer=sgd", "lr=0.01")),
    Shape("packed", "trl", ("packing=true",), traced=True),
    Shape("bf16", "transformers", ("precision=bf16",), traced=True, measured=True),
    Shape("bf16-params", "trl", ("precision=bf16_params", "lr=0.01")),
    Shape("lora", "transformers", ("lora=true", "batch=3", "accumulation=1"), resumed=True, traced=True),
    Shape("lora-packed", "trl", ("lora=true", "packing=true", "seed=3"), measured=True),
    Shape("checkpointed", "transformers", ("gradient_checkpointing=true", "seed=1"), "tulu3_sample", measured=True),
    Shape("answers", "trl", ("assistant_only=true", "seed=2"), "tulu3_sample"),
    Shape("warm-up", "transformers", ("assistant_only=true", "schedule=linear", "warmup_steps=1", "steps=4")),
    Shape("momentum", "trl", ("optimizer=sgd", "momentum=0.9", "lr=0.01", "schedule=cosine", "batch=3", "seq_len=96")),
    Shape("preferences", "trl", ("objective=dpo", "seed=4"), "preferences_sample"),
    Shape("preferences-lora", "trl", ("objective=dpo", "lora=true", "batch=3", "accumulation=1"), "preferences_sample"),
    Shape("tools", "transformers", ("batch=1", "accumulation=3", "weight_decay=0.1", "seed=5"), "tools_sample"),
)


@cache
def list_healthy() -> tuple[Case, ...]:
    """Every shape on every family that can run it, two processes that share an epoch, and whole curves."""
    return tuple(_list_healthy())


def _list_healthy() -> Iterator[Case]:
    for shape in SHAPES:
        for family in FAMILIES:
            name = f"healthy/{shape.name}/{family}"
            case = Case(
                name, shape.framework, family, shape.settings, data=shape.data, roles=_find_roles(shape, family)
            )
            packed = any(setting == "packing=true" for setting in shape.settings)
            if _can_run(case) and not (packed and ("packed", family) in LEFT_OUT):
                yield case
    for family in ("qwen3_moe", "qwen3_next", "gpt_oss"):
        yield Case(f"healthy/balanced/{family}", "trl", family, config=BALANCED)
    for family in ("qwen3", "llama"):
        settings = ("dp_size=2", "sharding=ddp")
        yield Case(f"healthy/two-ranks/{family}", "transformers", family, settings, roles=(Role.RUN,))
    for family in SCALED:
        yield Case(f"healthy/fp16/{family}", "plain", family, ("precision=fp16", "seed=6"))
    for family in LONG:
        yield Case(f"healthy/long/{family}", "transformers", family, ("steps=20",), roles=(Role.RUN, Role.OVERFIT))


def _find_roles(shape: Shape, family: str) -> tuple[Role, ...]:
    wanted = {*TWO_RUNS}
    if shape.resumed and family in RESUMED:
        wanted.add(Role.RESUMED)
    if shape.probed and family in PROBED:
        wanted.add(Role.PROBED)
    if shape.measured and family in MEASURED:
        wanted.add(Role.MEASURED)
    if shape.traced:
        wanted.add(Role.TRACED)
    return tuple(role for role in Role if role in wanted)


def _can_run(case: Case) -> bool:
    try:
        adapter(case.framework).check(case.spec())
    except BadRequest:
        return False
    return True
