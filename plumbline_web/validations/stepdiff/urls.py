"""Addresses of the step page."""

from __future__ import annotations

from django.urls import path

from plumbline_web.validations.stepdiff import views

urlpatterns = [
    path("validations/V-<int:pk>/step/", views.show_step, name="validation-step"),
    path("validations/V-<int:pk>/step/tensor/", views.show_tensor, name="validation-tensor"),
    path("validations/V-<int:pk>/step/<slug:name>.json", views.give_chart, name="validation-step-chart"),
    path("validations/V-<int:pk>/step/<slug:name>.csv", views.export_table, name="validation-step-table"),
]
