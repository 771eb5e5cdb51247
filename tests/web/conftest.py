"""What the dashboard's tests share."""

from __future__ import annotations

import pytest

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from tests.web.running import empty_queues


@pytest.fixture
def owner(db: None) -> User:
    """A submitter before empty queues: messages of an earlier test name jobs that are gone."""
    empty_queues()
    return User.objects.create(username="owner", role=Role.SUBMITTER)
