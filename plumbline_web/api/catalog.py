"""Routes of what can be validated: frameworks, models, checks."""

from __future__ import annotations

import inspect
from typing import Any

from django.http import HttpRequest
from ninja import Router

from checks.registry import CHECKS
from plumbline_web.accounts.enums import Scope
from plumbline_web.api.access import access
from plumbline_web.api.schemas import Check, Error, Framework, ModelOut
from plumbline_web.catalog.installed import interpreter_of, list_frameworks
from plumbline_web.catalog.models import TrainedModel

router = Router(tags=["catalogue"])

MOST_MODELS = 1000


@router.get(
    "/frameworks",
    auth=access(Scope.READ),
    response={200: list[Framework], 401: Error},
    summary="List frameworks",
    operation_id="list_frameworks",
)
def frameworks(request: HttpRequest) -> list[dict[str, Any]]:
    """Those that this installation can run."""
    return [
        {
            "name": each.name,
            "title": each.title,
            "package": each.package,
            "installed": interpreter_of(each.name).packages.get(each.package, ""),
        }
        for each in list_frameworks()
    ]


@router.get(
    "/models",
    auth=access(Scope.READ),
    response={200: list[ModelOut], 401: Error},
    summary="List models",
    operation_id="list_models",
)
def models(request: HttpRequest) -> list[dict[str, Any]]:
    """Checkpoints that validations were asked for, newest first, at most a thousand."""
    return [
        {
            "name": each.name,
            "family": each.family,
            "parameters": each.parameters,
            "revision": each.revision,
            "first_seen_at": each.first_seen_at,
        }
        for each in TrainedModel.objects.order_by("-first_seen_at", "-pk")[:MOST_MODELS]
    ]


@router.get(
    "/checks",
    auth=access(Scope.READ),
    response={200: list[Check], 401: Error},
    summary="List checks",
    operation_id="list_checks",
)
def checks(request: HttpRequest) -> list[dict[str, Any]]:
    """What each claims, catches and cannot see."""
    return [
        {"name": check.name, "claim": check.claim, "description": inspect.cleandoc(check.description)}
        for check in CHECKS.values()
    ]
