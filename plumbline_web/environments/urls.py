"""Addresses of environments."""

from __future__ import annotations

from django.urls import path

from plumbline_web.environments import views

urlpatterns = [
    path("environments/", views.environment_list, name="environment-list"),
    path("environments/live/", views.environment_live, name="environment-live"),
    path("environments/evict/", views.environment_evict, name="environment-evict"),
    path("environments/wishes/<int:pk>/cancel/", views.environment_cancel, name="environment-cancel"),
    path("environments/<str:name>/check/", views.environment_check, name="environment-check"),
    path("environments/<str:name>/remove/", views.environment_remove, name="environment-remove"),
]
