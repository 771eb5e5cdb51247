"""Addresses of the overview, the list, the form and a validation's own pages."""

from __future__ import annotations

from django.urls import path

from plumbline_web.validations.views import actions, bulk, detail, listing, new, overview, system

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("running/", overview.running, name="overview-running"),
    path("validations/", listing.validation_list, name="validation-list"),
    path("validations.<str:form>", listing.validation_export, name="validation-export"),
    path("validations/new/", new.validation_new, name="validation-new"),
    path("validations/new/preview/", new.validation_preview, name="validation-preview"),
    path("validations/cancel/", bulk.cancel_many, name="validation-cancel-many"),
    path("validations/V-<int:pk>/", detail.validation_detail, name="validation-detail"),
    path("validations/V-<int:pk>/live/", detail.validation_live, name="validation-live"),
    path("validations/V-<int:pk>/cancel/", actions.validation_cancel, name="validation-cancel"),
    path("validations/V-<int:pk>/retry/", actions.validation_retry, name="validation-retry"),
    path("validations/V-<int:pk>/rejudge/", actions.validation_rejudge, name="validation-rejudge"),
    path("validations/V-<int:pk>/checks/<str:name>/", detail.validation_check, name="validation-check"),
    path(
        "validations/V-<int:pk>/verdicts/<int:result>/plots/<int:number>.json",
        detail.validation_check_plot,
        name="validation-check-plot",
    ),
    path("validations/V-<int:pk>/result.json", detail.validation_result, name="validation-result"),
    path("jobs/<int:pk>/log/", detail.job_log, name="job-log"),
    path("system/", system.system, name="system"),
]
