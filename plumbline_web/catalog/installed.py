"""The rows of what is installed and asked for: framework, its environment here, a model by its content."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from checks.models import ResolvedModel
from checks.references.budget import count_parameters
from plumbline_web.catalog.models import Environment, Framework, TrainedModel
from workers.frameworks import names

TITLES: Mapping[str, tuple[str, str]] = {
    "transformers": ("Hugging Face Trainer", "transformers"),
    "trl": ("TRL", "trl"),
    "plain": ("Plain torch loop", "torch"),
}
"""adapter → title, distribution on the package index"""

PACKAGES = (
    "accelerate",
    "datasets",
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


def get_framework(name: str) -> Framework:
    title, package = TITLES.get(name, (name, name))
    framework, _ = Framework.objects.get_or_create(name=name, defaults={"title": title, "package": package})
    return framework


def list_frameworks() -> list[Framework]:
    """Every framework that an adapter can run, by its title; its row is made where it is new."""
    known = {framework.name: framework for framework in Framework.objects.all()}
    return sorted((known.get(name) or get_framework(name) for name in names()), key=lambda found: found.title.lower())


@cache
def installed_packages() -> Mapping[str, str]:
    """Package → version in this interpreter, of those that matter; an environment does not change under a process."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def get_environment(framework: Framework) -> Environment:
    """The environment in which this installation runs a framework."""
    return keep_environment(framework, python=platform.python_version(), packages=installed_packages())


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
