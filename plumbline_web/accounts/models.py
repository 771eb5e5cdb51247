"""People, the links by which they first sign in, and the tokens of their programs."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models

from plumbline_web.accounts.enums import Role, Scope


class User(AbstractUser):
    """One row = one person."""

    role = models.CharField(max_length=16, choices=Role, default=Role.VIEWER)
    visited_at = models.DateTimeField(null=True, blank=True)
    """last page of the visit before this one: what the overview calls new is newer"""
    seen_at = models.DateTimeField(null=True, blank=True)
    """last page that the person opened"""

    def has_role(self, role: Role) -> bool:
        return self.is_active and Role(self.role).includes(role)


class SignInLink(models.Model):
    """One row = one link that signs a person in, once; only its digest is kept."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="sign_in_links")
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)


class Token(models.Model):
    """One row = one program's key to the API; only its digest is kept."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100)
    hint = models.CharField(max_length=12)
    """first characters, by which its owner knows it again"""
    digest = models.CharField(max_length=64, unique=True)
    scopes = ArrayField(models.CharField(max_length=8, choices=Scope))
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["-created_at"]
