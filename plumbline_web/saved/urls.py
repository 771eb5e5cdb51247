"""Addresses of saved views."""

from __future__ import annotations

from django.urls import path

from plumbline_web.saved import views

urlpatterns = [
    path("views/", views.view_save, name="view-save"),
    path("views/<int:pk>/delete/", views.view_delete, name="view-delete"),
]
