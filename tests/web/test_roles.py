"""Who may call what: every address of the pages and of the API, by every role. An address that is in no table fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.accounts.tokens import ROLE_OF_SCOPE, create_token
from plumbline_web.catalog.models import Schedule
from tests.web.factories import make_capture, make_framework, make_job, make_profile, make_validation

pytestmark = pytest.mark.django_db

WHO = ("anonymous", "viewer", "owner", "stranger", "triager", "administrator")
"""owner: a submitter whose validation it is; stranger: a submitter whose validation it is not"""

EVERYONE = frozenset(WHO)
SIGNED_IN = EVERYONE - {"anonymous"}
SUBMITTERS = SIGNED_IN - {"viewer"}
CHANGERS = SUBMITTERS - {"stranger"}
TRIAGERS = frozenset({"triager", "administrator"})
ADMINISTRATORS = frozenset({"administrator"})
OWNER = frozenset({"owner"})

PAGES: dict[str, tuple[str, str, frozenset[str]]] = {
    "sign-in": ("GET", "/sign-in/", EVERYONE),
    "sign-in-link": ("GET", "/sign-in/unknown/", EVERYONE),
    "sign-out": ("POST", "/sign-out/", SIGNED_IN),
    "account": ("GET", "/account/", SIGNED_IN),
    "token-new": ("POST", "/account/tokens/", SIGNED_IN),
    "token-revoke": ("POST", "/account/tokens/{token}/revoke/", SIGNED_IN),
    "user-list": ("GET", "/users/", ADMINISTRATORS),
    "user-link": ("POST", "/users/{user}/link/", ADMINISTRATORS),
    "user-role": ("POST", "/users/{user}/role/", ADMINISTRATORS),
    "user-deactivate": ("POST", "/users/{user}/deactivate/", ADMINISTRATORS),
    "user-activate": ("POST", "/users/{user}/activate/", ADMINISTRATORS),
    "environment-list": ("GET", "/environments/", ADMINISTRATORS),
    "environment-live": ("GET", "/environments/live/", ADMINISTRATORS),
    "environment-evict": ("GET", "/environments/evict/?days=9", ADMINISTRATORS),
    "environment-cancel": ("POST", "/environments/wishes/1/cancel/", ADMINISTRATORS),
    "environment-check": ("POST", "/environments/none/check/", ADMINISTRATORS),
    "environment-remove": ("GET", "/environments/none/remove/", ADMINISTRATORS),
    "schedule-list": ("GET", "/schedules/", SIGNED_IN),
    "schedule-new": ("POST", "/schedules/new/", ADMINISTRATORS),
    "profile-new": ("POST", "/schedules/profiles/new/", ADMINISTRATORS),
    "schedule-enable": ("POST", "/schedules/{schedule}/enable/", ADMINISTRATORS),
    "schedule-disable": ("POST", "/schedules/{schedule}/disable/", ADMINISTRATORS),
    "schedule-run": ("POST", "/schedules/{schedule}/run/", ADMINISTRATORS),
    "api-docs": ("GET", "/api/docs", SIGNED_IN),
    "overview": ("GET", "/", SIGNED_IN),
    "overview-running": ("GET", "/running/", SIGNED_IN),
    "validation-list": ("GET", "/validations/", SIGNED_IN),
    "validation-export": ("GET", "/validations.csv", SIGNED_IN),
    "validation-new": ("POST", "/validations/new/", SUBMITTERS),
    "validation-preview": ("POST", "/validations/new/preview/", SIGNED_IN),
    "validation-cancel-many": ("POST", "/validations/cancel/", SIGNED_IN),
    "validation-detail": ("GET", "/validations/V-{validation}/", SIGNED_IN),
    "validation-live": ("GET", "/validations/V-{validation}/live/", SIGNED_IN),
    "validation-cancel": ("POST", "/validations/V-{validation}/cancel/", CHANGERS),
    "validation-retry": ("POST", "/validations/V-{validation}/retry/", CHANGERS),
    "validation-rejudge": ("POST", "/validations/V-{validation}/rejudge/", CHANGERS),
    "validation-check": ("GET", "/validations/V-{validation}/checks/step.loss/", SIGNED_IN),
    "validation-check-plot": ("GET", "/validations/V-{validation}/verdicts/1/plots/0.json", SIGNED_IN),
    "validation-result": ("GET", "/validations/V-{validation}/result.json", SIGNED_IN),
    "job-log": ("GET", "/jobs/{job}/log/", SIGNED_IN),
    "system": ("GET", "/system/", SIGNED_IN),
    "validation-step": ("GET", "/validations/V-{validation}/step/", SIGNED_IN),
    "validation-tensor": ("GET", "/validations/V-{validation}/step/tensor/?name=x", SIGNED_IN),
    "validation-step-chart": ("GET", "/validations/V-{validation}/step/x.json", SIGNED_IN),
    "validation-step-table": ("GET", "/validations/V-{validation}/step/x.csv", SIGNED_IN),
    "compare": ("GET", "/compare/", SIGNED_IN),
    "compare-curves": ("GET", "/compare/loss.json", SIGNED_IN),
    "compare-differences": ("GET", "/compare/loss/difference.json", SIGNED_IN),
    "compare-export": ("GET", "/compare.csv", SIGNED_IN),
    "notification-list": ("GET", "/notifications/", SIGNED_IN),
    "notification-open": ("GET", "/notifications/1/", SIGNED_IN),
    "notification-read": ("POST", "/notifications/read/", SIGNED_IN),
    "notification-preferences": ("POST", "/notifications/preferences/", SIGNED_IN),
    "webhook-list": ("GET", "/webhooks/", ADMINISTRATORS),
    "webhook-change": ("POST", "/webhooks/1/try/", ADMINISTRATORS),
    "delivery-repeat": ("POST", "/webhooks/messages/1/repeat/", ADMINISTRATORS),
    "view-save": ("POST", "/views/", SIGNED_IN),
    "view-delete": ("POST", "/views/1/delete/", SIGNED_IN),
    "problem-list": ("GET", "/problems/", SIGNED_IN),
    "problem-export": ("GET", "/problems.csv", SIGNED_IN),
    "problem-matrix": ("GET", "/problems/matrix/", SIGNED_IN),
    "problem-recurrences": ("GET", "/problems/recurrences/", SIGNED_IN),
    "problem-detail": ("GET", "/problems/P-1/", SIGNED_IN),
    "report-list": ("GET", "/reports/", SIGNED_IN),
    "report-new": ("GET", "/reports/new/?problem=1", TRIAGERS),
    "report-detail": ("GET", "/reports/R-1/", SIGNED_IN),
    "report-edit": ("GET", "/reports/R-1/edit/", TRIAGERS),
    "report-markdown": ("GET", "/reports/R-1/report.md", SIGNED_IN),
    "report-zip": ("GET", "/reports/R-1/report.zip", SIGNED_IN),
    "report-plot": ("GET", "/reports/R-1/plot.png", SIGNED_IN),
    "report-run": ("POST", "/reports/R-1/run/", TRIAGERS),
    "report-sent": ("POST", "/reports/R-1/sent/", TRIAGERS),
    "report-upstream": ("POST", "/reports/R-1/upstream/", TRIAGERS),
    "problem-edit": ("GET", "/problems/P-1/edit/", TRIAGERS),
    "problem-merge": ("POST", "/problems/P-1/merge/", TRIAGERS),
    "finding-list": ("GET", "/triage/", SIGNED_IN),
    "finding-export": ("GET", "/triage.csv", SIGNED_IN),
    "triage-undo": ("POST", "/triage/undo/", TRIAGERS),
    "triage-bulk": ("POST", "/triage/bulk/", TRIAGERS),
    "triage-regroup": ("POST", "/triage/groups/", TRIAGERS),
    "finding-detail": ("GET", "/triage/F-1/", SIGNED_IN),
    "finding-save": ("POST", "/triage/F-1/save/", TRIAGERS),
    "finding-pin": ("POST", "/triage/F-1/pin/", SIGNED_IN),
    "finding-reject": ("POST", "/triage/F-1/not/P-1/", TRIAGERS),
    "finding-waive": ("POST", "/triage/F-1/waive/", TRIAGERS),
    "problem-from-finding": ("GET", "/triage/F-1/problem/", TRIAGERS),
    "waiver-end": ("POST", "/triage/waivers/1/end/", TRIAGERS),
    "meeting-list": ("POST", "/triage/meetings/", TRIAGERS),
    "meeting-detail": ("GET", "/triage/meetings/1/", SIGNED_IN),
    "meeting-save": ("POST", "/triage/meetings/1/1/save/", TRIAGERS),
    "meeting-end": ("POST", "/triage/meetings/1/end/", TRIAGERS),
    "meeting-minutes": ("GET", "/triage/meetings/1/minutes.md", SIGNED_IN),
}

API: dict[str, tuple[str, str, frozenset[str]]] = {
    "openapi-json": ("GET", "/openapi.json", SIGNED_IN),
    "create_validation": ("POST", "/validations", SUBMITTERS),
    "list_validations": ("GET", "/validations", SIGNED_IN),
    "read_validation": ("GET", "/validations/V-{validation}", SIGNED_IN),
    "read_result": ("GET", "/validations/V-{validation}/result", SIGNED_IN),
    "cancel_validation": ("POST", "/validations/V-{validation}/cancel", CHANGERS),
    "retry_validation": ("POST", "/validations/V-{validation}/retry", CHANGERS),
    "rejudge_validation": ("POST", "/validations/V-{validation}/rejudge", CHANGERS),
    "create_upload": ("POST", "/captures/uploads", SUBMITTERS),
    "read_upload": ("GET", "/captures/uploads/none", SUBMITTERS),
    "discard_upload": ("DELETE", "/captures/uploads/none", SUBMITTERS),
    "send_chunk": ("PUT", "/captures/uploads/none/files/0?offset=0", SUBMITTERS),
    "complete_upload": ("POST", "/captures/uploads/none/complete", SUBMITTERS),
    "list_captures": ("GET", "/captures", SIGNED_IN),
    "read_capture": ("GET", "/captures/{capture}", SIGNED_IN),
    "download_file": ("GET", "/captures/{capture}/files/manifest.json", SIGNED_IN),
    "download_archive": ("GET", "/captures/{capture}/archive", SIGNED_IN),
    "list_problems": ("GET", "/problems", SIGNED_IN),
    "read_problem": ("GET", "/problems/P-1", SIGNED_IN),
    "list_findings": ("GET", "/findings", SIGNED_IN),
    "read_finding": ("GET", "/findings/F-1", SIGNED_IN),
    "decide_finding": ("POST", "/findings/F-1/decision", TRIAGERS),
    "undo_action": ("POST", "/actions/1/undo", TRIAGERS),
    "list_results": ("GET", "/results", SIGNED_IN),
    "read_log": ("GET", "/jobs/{job}/log", SIGNED_IN),
    "read_me": ("GET", "/me", SIGNED_IN),
    "list_tokens": ("GET", "/tokens", SIGNED_IN),
    "create": ("POST", "/tokens", SIGNED_IN),
    "revoke": ("DELETE", "/tokens/{token}", SIGNED_IN),
    "frameworks": ("GET", "/frameworks", SIGNED_IN),
    "models": ("GET", "/models", SIGNED_IN),
    "checks": ("GET", "/checks", SIGNED_IN),
}

BY_SESSION_ALONE = frozenset({"create"})
"""Routes that take no token."""


NO_ROUTES = frozenset({"api-root", "not-found"})
"""Answer 404 to everyone."""

BODIES = {
    "/validations/new/": {
        "framework": "transformers",
        "model": "tiny:qwen3",
        "data": "gsm8k_sample",
        "checks": "step.loss",
    },
    "/api/v1/validations": {"framework": "transformers", "model": "tiny:qwen3", "data": "gsm8k_sample"},
}
"""What is sent where an empty form would be refused before anyone asks who sends it."""


@dataclass(frozen=True)
class House:
    """One of everything, and a person of every kind."""

    people: dict[str, User]
    numbers: dict[str, int]


@pytest.fixture
def house() -> House:
    roles = {"viewer": Role.VIEWER, "owner": Role.SUBMITTER, "stranger": Role.SUBMITTER, "triager": Role.TRIAGER}
    people = {name: User.objects.create(username=name, role=role) for name, role in roles.items()}
    people["administrator"] = User.objects.create(username="administrator", role=Role.ADMINISTRATOR)
    other = User.objects.create(username="other", role=Role.VIEWER)
    validation = make_validation(owner=people["owner"], state="running")
    run = validation.runs.order_by("pk").first()
    assert run is not None
    schedule = Schedule.objects.create(
        profile=make_profile(), framework=make_framework(), model="/gone", trigger="nightly", owner=other
    )
    numbers = {
        "validation": validation.pk,
        "job": make_job(run=run, lines=["a line"]).pk,
        "capture": make_capture(run).pk,
        "user": other.pk,
        "token": create_token(other, name="n", scopes=["read"], days=1)[0].pk,
        "schedule": schedule.pk,
    }
    return House(people, numbers)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_for_its_roles_and_no_other(house: House, name: str) -> None:
    method, address, allowed = PAGES[name]
    seen = {who: call(method, address.format(**house.numbers), house.people.get(who)) for who in WHO}
    assert {who for who, status in seen.items() if status not in (302, 403)} == allowed, seen
    assert seen["anonymous"] == 302 or "anonymous" in allowed


@pytest.mark.parametrize("name", API)
def test_a_route_answers_to_its_roles_and_no_other(house: House, name: str) -> None:
    method, address, allowed = API[name]
    path = f"/api/v1{address.format(**house.numbers)}"
    seen = {who: call(method, path, house.people.get(who)) for who in WHO}
    assert {who for who, status in seen.items() if status not in (401, 403)} == allowed, seen
    assert seen["anonymous"] == 401
    by_token = {who: call_with_token(method, path, user) for who, user in house.people.items()}
    expected = frozenset() if name in BY_SESSION_ALONE else allowed
    assert {who for who, status in by_token.items() if status not in (401, 403)} == expected, by_token


def test_every_address_is_in_the_tables() -> None:
    names = list(walk(get_resolver().url_patterns))
    assert {name for name in names if not name.startswith("api:")} == set(PAGES)
    assert {name.removeprefix("api:") for name in names if name.startswith("api:")} - NO_ROUTES == set(API)


def walk(patterns: list[Any], namespace: str = "") -> Iterator[str]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            inner = f"{namespace}{pattern.namespace}:" if pattern.namespace else namespace
            yield from walk(pattern.url_patterns, inner)
        elif isinstance(pattern, URLPattern):
            yield f"{namespace}{pattern.name}"


def call(method: str, address: str, user: User | None) -> int:
    """The status, 302 only where it leads to signing in; whatever the call changed is undone."""
    client = Client()
    with transaction.atomic():
        if user is not None:
            client.force_login(user)
        response = send(client, method, address, {})
        transaction.set_rollback(True)
    if response.status_code == 302 and not response.headers["Location"].startswith("/sign-in/?next="):
        return 200
    return int(response.status_code)


def call_with_token(method: str, address: str, user: User) -> int:
    with transaction.atomic():
        scopes = [scope.value for scope, role in ROLE_OF_SCOPE.items() if user.has_role(role)]
        _, secret = create_token(user, name="n", scopes=scopes, days=1)
        response = send(Client(), method, address, {"Authorization": f"Bearer {secret}"})
        transaction.set_rollback(True)
    return int(response.status_code)


def send(client: Client, method: str, address: str, headers: dict[str, str]) -> Any:
    if method == "GET":
        return client.get(address, headers=headers)
    if address.startswith("/api/"):
        body = json.dumps(BODIES.get(address, {}))
        return client.generic(method, address, body, content_type="application/json", headers=headers)
    return client.post(address, BODIES.get(address, {}), headers=headers)
