"""Addresses of reports."""

from __future__ import annotations

from django.urls import path

from plumbline_web.reports import views

urlpatterns = [
    path("reports/", views.report_list, name="report-list"),
    path("reports/new/", views.report_new, name="report-new"),
    path("reports/R-<int:pk>/", views.report_detail, name="report-detail"),
    path("reports/R-<int:pk>/edit/", views.report_edit, name="report-edit"),
    path("reports/R-<int:pk>/report.md", views.report_file, {"form": "md"}, name="report-markdown"),
    path("reports/R-<int:pk>/report.zip", views.report_file, {"form": "zip"}, name="report-zip"),
    path("reports/R-<int:pk>/plot.png", views.report_plot, name="report-plot"),
    path("reports/R-<int:pk>/run/", views.report_run, name="report-run"),
    path("reports/R-<int:pk>/sent/", views.report_sent, name="report-sent"),
    path("reports/R-<int:pk>/upstream/", views.report_upstream, name="report-upstream"),
]
