"""Addresses of the catalogue."""

from __future__ import annotations

from django.urls import path

from plumbline_web.problems import views

urlpatterns = [
    path("problems/", views.problem_list, name="problem-list"),
    path("problems.<str:form>", views.problem_export, name="problem-export"),
    path("problems/matrix/", views.problem_matrix, name="problem-matrix"),
    path("problems/recurrences/", views.problem_recurrences, name="problem-recurrences"),
    path("problems/P-<int:pk>/", views.problem_detail, name="problem-detail"),
]
