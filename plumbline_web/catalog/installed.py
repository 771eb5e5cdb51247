"""The rows of what is installed and asked for: framework, its environment here, a model by its content."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from checks.errors import BadRequest
from checks.models import ResolvedModel
from checks.references.budget import count_parameters
from plumbline_web.catalog.models import Environment, Framework, TrainedModel
from workers.frameworks import names
from workers.frameworks.interpreter import framework_python

TITLES: Mapping[str, tuple[str, str]] = {
    "transformers": ("Hugging Face Trainer", "transformers"),
    "trl": ("TRL", "trl"),
    "plain": ("Plain torch loop", "torch"),
    "ms_swift": ("ms-swift", "ms-swift"),
    "automodel": ("NVIDIA NeMo AutoModel", "nemo-automodel"),
    "megatron_swift": ("Megatron-SWIFT", "ms-swift"),
    "megatron_core": ("Megatron-core", "megatron-core"),
    "miles": ("Miles", "megatron-core"),  # itself a checkout, whose commit is in each run's environment
    "command": ("Your own command line", "torch"),
}
"""adapter → title, distribution on the package index"""

PACKAGES = (
    "accelerate",
    "datasets",
    "mcore-bridge",
    "megatron-core",
    "ms-swift",
    "nemo-automodel",
    "numpy",
    "peft",
    "plumbline-capture",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
)
"""What can change a framework's numbers or what is recorded of them; the rest of an interpreter cannot."""


ASK = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps([platform.python_version(), found]))
"""


def get_framework(name: str) -> Framework:
    title, package = TITLES.get(name, (name, name))
    framework, _ = Framework.objects.get_or_create(name=name, defaults={"title": title, "package": package})
    if name in TITLES and (framework.title, framework.package) != (title, package):
        # The row is of a release that knew the adapter by its name alone.
        framework.title, framework.package = title, package
        framework.save(update_fields=["title", "package"])
    return framework


def list_frameworks() -> list[Framework]:
    """Every framework that has an adapter, those that are installed here first, by title; rows are made where new."""
    known = {(framework.name, framework.title): framework for framework in Framework.objects.all()}
    found = (known.get((name, TITLES.get(name, (name, name))[0])) or get_framework(name) for name in names())
    return sorted(found, key=lambda each: (each.package not in interpreter_of(each.name).packages, each.title.lower()))


@dataclass(frozen=True)
class Interpreter:
    """A Python that frameworks run in: its version, and package → version of those that matter."""

    python: str
    packages: Mapping[str, str]


def interpreter_of(framework: str) -> Interpreter:
    """The interpreter that a framework runs in here: this one, or the one that is named for it."""
    try:
        python = framework_python(framework)
    except BadRequest:  # a wrong name is said to whoever runs it
        python = sys.executable
    return _read_interpreter(python)


@cache
def _read_interpreter(python: str) -> Interpreter:
    """An environment does not change under a process, so that it is asked once."""
    if python != sys.executable:
        command = [python, "-c", ASK, *PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return Interpreter(*json.loads(done.stdout.splitlines()[-1]))
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return Interpreter(platform.python_version(), found)


def get_environment(framework: Framework) -> Environment:
    """The environment in which this installation runs a framework."""
    here = interpreter_of(framework.name)
    return keep_environment(framework, python=here.python, packages=here.packages)


def keep_environment(framework: Framework, *, python: str, packages: Mapping[str, str]) -> Environment:
    """The row of an environment, of what can change the framework's numbers."""
    kept = {name: packages[name] for name in sorted({*PACKAGES, framework.package} & set(packages))}
    content = json.dumps([python, sorted(kept.items())])
    environment, _ = Environment.objects.get_or_create(
        framework=framework,
        digest=hashlib.sha256(content.encode()).hexdigest(),
        defaults={
            "version": kept.get(framework.package, "unknown")[:50],  # what the columns hold; a pushed one may say more
            "python": python[:20],
            "packages": kept,
        },
    )
    return environment


def get_model(name: str, resolved: ResolvedModel) -> TrainedModel:
    """The row of a checkpoint as it is now; another content under the same name is another row."""
    model = TrainedModel.objects.filter(name=name, revision=resolved.revision).first()
    if model is None:
        model, _ = TrainedModel.objects.get_or_create(
            name=name,
            revision=resolved.revision,
            defaults={"family": resolved.family, "parameters": count_parameters(resolved.path)},
        )
    return model
