"""Recipes: what a distribution needs beside, or must do without, to be of use on a machine without a GPU.

A framework's `environment.toml` may hold a table `recipe`. What pip resolves for the distribution's own requirements is
then not all that is wanted: kernels that only a GPU runs are left out, with the reason said, and their dependents are
installed as they are (`alone`), their other requirements beside them.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FRAMEWORKS = Path(__file__).parents[1] / "frameworks"


@dataclass(frozen=True)
class LeftOut:
    """A distribution that an environment does without."""

    name: str
    reason: str


@dataclass(frozen=True)
class Recipe:
    """How one distribution is installed; names are canonical, requirements as pip writes them."""

    distribution: str
    requires: tuple[str, ...] = ()
    """installed beside it, unless the person names another release of the same"""
    alone: tuple[str, ...] = ()
    """installed without what they require of `left_out`; the rest of it is resolved as usual"""
    left_out: tuple[LeftOut, ...] = ()

    def __add__(self, other: Recipe) -> Recipe:
        return Recipe(
            self.distribution or other.distribution,
            tuple(dict.fromkeys(self.requires + other.requires)),
            tuple(dict.fromkeys(self.alone + other.alone)),
            tuple({each.name: each for each in self.left_out + other.left_out}.values()),
        )


def has_gpu() -> bool:
    """Whether this machine has a GPU that torch's CUDA or ROCm builds could use: its driver's command is there."""
    return any(shutil.which(command) for command in ("nvidia-smi", "rocm-smi"))


def find_recipe(wish: Sequence[Requirement], *, gpu: bool) -> Recipe:
    """The recipes of all the distributions asked for as one; it leaves nothing out where there is a GPU.

    Of what a recipe adds, that which the person asks for in a release of their own gives way.
    """
    asked = {canonicalize_name(each.name) for each in wish}
    recipe = Recipe("")
    for known in _read_recipes():
        if known.distribution in asked:
            recipe += known
    if gpu:
        recipe = Recipe(recipe.distribution, recipe.requires)
    requires = tuple(text for text in recipe.requires if canonicalize_name(Requirement(text).name) not in asked)
    left_out = tuple(each for each in recipe.left_out if each.name not in asked)
    return Recipe(recipe.distribution, requires, recipe.alone if left_out else (), left_out)


@cache
def _read_recipes() -> tuple[Recipe, ...]:
    files = sorted(FRAMEWORKS.glob("*/environment.toml"))
    return tuple(recipe for file in files for recipe in parse_recipes(tomllib.loads(file.read_text(encoding="utf-8"))))


def parse_recipes(content: dict[str, Any]) -> tuple[Recipe, ...]:
    """The recipes of an environment.toml: its tables `recipe`, one a distribution; none in most."""
    return tuple(
        Recipe(
            canonicalize_name(table["distribution"]),
            tuple(table.get("requires", ())),
            tuple(canonicalize_name(name) for name in table.get("alone", ())),
            tuple(LeftOut(canonicalize_name(each["name"]), each["reason"]) for each in table.get("left_out", ())),
        )
        for table in content.get("recipe", ())
    )
