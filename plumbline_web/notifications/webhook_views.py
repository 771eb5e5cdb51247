"""The administrators' page of webhooks."""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from plumbline_web.accounts.access import requires, signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.forms import refuse
from plumbline_web.notifications.enums import Kind
from plumbline_web.notifications.forms import WebhookForm
from plumbline_web.notifications.models import Delivery, Webhook
from plumbline_web.notifications.sending import MOST_ATTEMPTS, repeat
from plumbline_web.notifications.webhooks import create_webhook, remove_webhook, switch_webhook, try_webhook

MOST_SHOWN = 50
"""Messages, the newest first."""


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@requires(Role.ADMINISTRATOR)
def webhook_list(request: HttpRequest) -> HttpResponse:
    """All of them with their last messages; POST adds one, and shows a drawn secret in the answer itself."""
    form = WebhookForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        values = form.cleaned_data
        kinds = [Kind(kind) for kind in values["kinds"]]
        try:
            hook, secret = create_webhook(
                url=values["url"], secret=values["secret"], kinds=kinds, by=signed_in(request)
            )
        except Refused as error:
            refuse(form, error)
        else:
            return _render(request, made=hook, secret=secret)
    return _render(request, form=form)


@require_POST
@requires(Role.ADMINISTRATOR)
def webhook_change(request: HttpRequest, pk: int, verb: str) -> HttpResponse:
    hook = get_object_or_404(Webhook, pk=pk)
    if verb == "remove":
        remove_webhook(hook)
        messages.success(request, f"{hook.url} is removed.")
    elif verb == "try":
        try_webhook(hook)
        messages.success(request, "A trial is on its way; reload this page to see the answer.")
    else:
        switch_webhook(hook, active=verb == "resume")
        messages.success(request, f"{hook.url} is told {'again' if hook.is_active else 'of nothing more'}.")
    return redirect("webhook-list")


@require_POST
@requires(Role.ADMINISTRATOR)
def delivery_repeat(request: HttpRequest, pk: int) -> HttpResponse:
    done = repeat(get_object_or_404(Delivery, pk=pk, webhook__isnull=False))
    if done:
        messages.success(request, "It is attempted again.")
    else:
        messages.error(request, "It was not given up, so there is nothing to repeat.")
    return redirect("webhook-list")


def _render(
    request: HttpRequest, *, form: WebhookForm | None = None, made: Webhook | None = None, secret: str = ""
) -> HttpResponse:
    ctx = {
        "form": form or WebhookForm(),
        "webhooks": Webhook.objects.select_related("created_by"),
        "deliveries": Delivery.objects.filter(webhook__isnull=False)
        .select_related("webhook")
        .order_by("-pk")[:MOST_SHOWN],
        "attempts": MOST_ATTEMPTS,
        "allows_private": settings.WEBHOOK_PRIVATE,
        "made": made,
        "secret": secret,
    }
    return render(request, "notifications/webhooks.html", ctx)
