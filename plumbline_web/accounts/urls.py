"""Addresses of accounts."""

from __future__ import annotations

from django.urls import path

from plumbline_web.accounts import people_views, views

urlpatterns = [
    path("sign-in/", views.sign_in, name="sign-in"),
    path("sign-in/<str:secret>/", views.sign_in_link, name="sign-in-link"),
    path("sign-out/", views.sign_out, name="sign-out"),
    path("account/", views.account, name="account"),
    path("account/tokens/", views.token_new, name="token-new"),
    path("account/tokens/<int:pk>/revoke/", views.token_revoke, name="token-revoke"),
    path("users/", people_views.user_list, name="user-list"),
    path("users/<int:pk>/link/", people_views.user_link, name="user-link"),
    path("users/<int:pk>/role/", people_views.user_role, name="user-role"),
    path("users/<int:pk>/deactivate/", people_views.user_deactivate, name="user-deactivate"),
    path("users/<int:pk>/activate/", people_views.user_activate, name="user-activate"),
]
