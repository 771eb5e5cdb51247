"""What can be done with accounts, links and tokens, in one place."""

from __future__ import annotations

from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.links import (
    InvalidLink,
    create_first_administrator_link,
    create_link,
    find_link,
    sign_in_with,
)
from plumbline_web.accounts.people import activate, deactivate, invite, set_password, set_role
from plumbline_web.accounts.tokens import InvalidToken, authenticate_token, create_token, revoke_token, scopes_of

__all__ = [
    "InvalidLink",
    "InvalidToken",
    "Refused",
    "activate",
    "authenticate_token",
    "create_first_administrator_link",
    "create_link",
    "create_token",
    "deactivate",
    "find_link",
    "invite",
    "revoke_token",
    "scopes_of",
    "set_password",
    "set_role",
    "sign_in_with",
]
