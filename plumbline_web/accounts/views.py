"""Signing in and out, and a person's own account."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth import authenticate, login, logout, update_session_auth_hash
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render, resolve_url
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from plumbline_web.accounts.access import signed_in
from plumbline_web.accounts.domain import (
    InvalidLink,
    Refused,
    create_token,
    find_link,
    revoke_token,
    set_password,
    sign_in_with,
)
from plumbline_web.accounts.forms import PasswordForm, SignInForm, TokenForm, refuse
from plumbline_web.accounts.limits import (
    TooManyAttempts,
    check_attempts,
    client_address,
    count_failure,
    forget_failures,
)
from plumbline_web.accounts.models import Token, User

BACKEND = "django.contrib.auth.backends.ModelBackend"


@login_not_required
@never_cache
@sensitive_post_parameters("password")
@require_http_methods(["GET", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    """Sign in by password; a wrong name and a wrong password look the same."""
    form = SignInForm(request.POST if request.method == "POST" else None)
    status = 200
    if form.is_bound and form.is_valid():
        try:
            user = _authenticate(request, form)
        except TooManyAttempts as error:
            form.add_error(None, str(error))
            status = 429
        else:
            if user is not None:
                login(request, user)
                return redirect(_next_page(request))
            form.add_error(None, "The name or the password is wrong; type both again, or ask for a sign-in link.")
    ctx = {"form": form, "next": request.POST.get("next") or request.GET.get("next", "")}
    return render(request, "accounts/sign_in.html", ctx, status=status)


@login_not_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in_link(request: HttpRequest, secret: str) -> HttpResponse:
    """Show who a link signs in, and sign them in when they press the button: opening it alone uses nothing up."""
    try:
        if request.method == "POST":
            login(request, sign_in_with(secret), backend=BACKEND)
            return redirect("account" if not signed_in(request).has_usable_password() else "overview")
        ctx = {"username": find_link(secret).user.username, "error": ""}
        return render(request, "accounts/sign_in_link.html", ctx)
    except InvalidLink as error:
        ctx = {"username": "", "error": str(error)}
        return render(request, "accounts/sign_in_link.html", ctx, status=410)


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("sign-in")


@never_cache
@sensitive_post_parameters("current", "password")
@require_http_methods(["GET", "HEAD", "POST"])
def account(request: HttpRequest) -> HttpResponse:
    """The person's role, password and tokens; POST sets the password."""
    user = signed_in(request)
    form = PasswordForm(request.POST if request.method == "POST" else None, user=user)
    if form.is_bound and form.is_valid():
        try:
            set_password(user, form.cleaned_data["password"], current=form.cleaned_data.get("current", ""))
        except Refused as error:
            refuse(form, error)
        else:
            update_session_auth_hash(request, user)
            messages.success(request, "The password is set.")
            return redirect("account")
    return _render_account(request, password_form=form)


@never_cache
@require_POST
def token_new(request: HttpRequest) -> HttpResponse:
    """Make a token and show its secret in the answer itself: it is stored nowhere, not even in the session."""
    user = signed_in(request)
    form = TokenForm(request.POST, user=user)
    if form.is_valid():
        values = form.cleaned_data
        try:
            token, secret = create_token(user, name=values["name"], scopes=values["scopes"], days=values["days"])
        except Refused as error:
            refuse(form, error)
        else:
            return _render_account(request, made=token, secret=secret)
    return _render_account(request, token_form=form)


@require_POST
def token_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    token = get_object_or_404(Token, pk=pk, user=signed_in(request))
    revoke_token(token, by=signed_in(request))
    messages.success(request, f"The token {token.name} is revoked.")
    return redirect("account")


def _render_account(
    request: HttpRequest,
    *,
    password_form: PasswordForm | None = None,
    token_form: TokenForm | None = None,
    made: Token | None = None,
    secret: str = "",
) -> HttpResponse:
    user = signed_in(request)
    ctx = {
        "password_form": password_form or PasswordForm(user=user),
        "token_form": token_form or TokenForm(user=user),
        "tokens": user.tokens.all()[:100],
        "made": made,
        "secret": secret,
        "now": timezone.now(),
    }
    return render(request, "accounts/account.html", ctx)


def _authenticate(request: HttpRequest, form: SignInForm) -> User | None:
    username, address = form.cleaned_data["username"], client_address(request)
    check_attempts(username, address=address)
    user = authenticate(request, username=username, password=form.cleaned_data["password"])
    if user is None:
        count_failure(username, address=address)
        return None
    assert isinstance(user, User)
    forget_failures(username, address=address)
    return user


def _next_page(request: HttpRequest) -> str:
    """Where the person wanted to go, if that is on this site."""
    target = request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(target, {request.get_host()}, require_https=request.is_secure())
    return target if safe else resolve_url("overview")
