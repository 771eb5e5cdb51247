"""Addresses of the comparison and of its curves."""

from __future__ import annotations

from django.urls import path, re_path

from plumbline_web.curves import views

urlpatterns = [
    path("compare/", views.compare, name="compare"),
    path("compare/<slug:quantity>.json", views.give_curves, {"difference": False}, name="compare-curves"),
    path(
        "compare/<slug:quantity>/difference.json", views.give_curves, {"difference": True}, name="compare-differences"
    ),
    re_path(r"^compare\.(?P<form>csv|json)$", views.export, name="compare-export"),
]
