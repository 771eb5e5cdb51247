"""Addresses of notifications."""

from __future__ import annotations

from django.urls import path, re_path

from plumbline_web.notifications import views, webhook_views

urlpatterns = [
    path("notifications/", views.notification_list, name="notification-list"),
    path("notifications/read/", views.notification_read, name="notification-read"),
    path("notifications/preferences/", views.notification_preferences, name="notification-preferences"),
    path("notifications/<int:pk>/", views.notification_open, name="notification-open"),
    path("webhooks/", webhook_views.webhook_list, name="webhook-list"),
    re_path(
        r"^webhooks/(?P<pk>[0-9]{1,18})/(?P<verb>try|pause|resume|remove)/$",
        webhook_views.webhook_change,
        name="webhook-change",
    ),
    path("webhooks/messages/<int:pk>/repeat/", webhook_views.delivery_repeat, name="delivery-repeat"),
]
