"""Addresses of schedules and profiles."""

from __future__ import annotations

from django.urls import path

from plumbline_web.catalog import views

urlpatterns = [
    path("schedules/", views.schedule_list, name="schedule-list"),
    path("schedules/new/", views.schedule_new, name="schedule-new"),
    path("schedules/profiles/new/", views.profile_new, name="profile-new"),
    path("schedules/<int:pk>/enable/", views.schedule_enable, name="schedule-enable"),
    path("schedules/<int:pk>/disable/", views.schedule_disable, name="schedule-disable"),
    path("schedules/<int:pk>/run/", views.schedule_run, name="schedule-run"),
]
