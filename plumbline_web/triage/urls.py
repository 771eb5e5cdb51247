"""Addresses of triage."""

from __future__ import annotations

from django.urls import path

from plumbline_web.triage.views import bulk, finding, meetings, problem, queue

urlpatterns = [
    path("triage/", queue.finding_list, name="finding-list"),
    path("triage.<str:form>", queue.finding_export, name="finding-export"),
    path("triage/undo/", queue.undo_action, name="triage-undo"),
    path("triage/bulk/", bulk.decide_many, name="triage-bulk"),
    path("triage/groups/", bulk.regroup, name="triage-regroup"),
    path("triage/F-<int:pk>/", finding.finding_detail, name="finding-detail"),
    path("triage/F-<int:pk>/save/", finding.finding_save, name="finding-save"),
    path("triage/F-<int:pk>/pin/", finding.finding_pin, name="finding-pin"),
    path("triage/F-<int:pk>/not/P-<int:problem>/", finding.finding_reject, name="finding-reject"),
    path("triage/F-<int:pk>/waive/", finding.finding_waive, name="finding-waive"),
    path("triage/F-<int:pk>/problem/", problem.problem_from_finding, name="problem-from-finding"),
    path("triage/waivers/<int:pk>/end/", finding.waiver_end, name="waiver-end"),
    path("triage/meetings/", meetings.meeting_list, name="meeting-list"),
    path("triage/meetings/<int:pk>/", meetings.meeting_detail, name="meeting-detail"),
    path("triage/meetings/<int:pk>/<int:position>/save/", meetings.meeting_save, name="meeting-save"),
    path("triage/meetings/<int:pk>/end/", meetings.meeting_end, name="meeting-end"),
    path("triage/meetings/<int:pk>/minutes.md", meetings.meeting_minutes, name="meeting-minutes"),
    path("problems/P-<int:pk>/edit/", problem.problem_edit, name="problem-edit"),
    path("problems/P-<int:pk>/merge/", problem.problem_merge, name="problem-merge"),
]
