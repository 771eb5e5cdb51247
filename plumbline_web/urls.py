"""Every address of the site."""

from __future__ import annotations

from django.urls import include, path

from plumbline_web.api.urls import reference_urlpatterns

urlpatterns = [
    *reference_urlpatterns,
    path("", include("plumbline_web.accounts.urls")),
    path("", include("plumbline_web.validations.urls")),
    path("", include("plumbline_web.validations.stepdiff.urls")),
    path("", include("plumbline_web.curves.urls")),
    path("", include("plumbline_web.catalog.urls")),
    path("", include("plumbline_web.environments.urls")),
    path("", include("plumbline_web.notifications.urls")),
    path("", include("plumbline_web.problems.urls")),
    path("", include("plumbline_web.reports.urls")),
    path("", include("plumbline_web.triage.urls")),
    path("", include("plumbline_web.saved.urls")),
    path("api/v1/", include("plumbline_web.api.urls")),
]

# Names what was too large, where Django's own page would only say that something was wrong.
handler400 = "plumbline_web.validations.views.errors.bad_request"
