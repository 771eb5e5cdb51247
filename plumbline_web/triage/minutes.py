"""The minutes of a meeting, as Markdown: what was on the agenda, what was said, and what was decided by whom."""

from __future__ import annotations

from collections.abc import Iterator

from plumbline_web.triage.enums import AgendaReason
from plumbline_web.triage.models import Action, AgendaItem, Comment, Meeting
from plumbline_web.triage.undo import find_undoing

SPECIAL = "\\`*_{}[]<>#|!~"


def write_minutes(meeting: Meeting) -> str:
    """Every item in the agenda's order; what was undone in the meeting is told too."""
    actions = list(meeting.actions.select_related("actor").order_by("pk"))
    changed = {action.pk: set(action.changes.values_list("finding", flat=True)) for action in actions}
    comments = list(meeting.comments.select_related("author"))
    items = list(
        meeting.items.select_related(
            "finding__validation__framework", "finding__validation__environment", "finding__validation__model"
        ).select_related("finding__result")
    )
    decided = [item for item in items if any(item.finding_id in keys for keys in changed.values())]
    lines = [
        f"# {escape(meeting.title)}",
        "",
        f"{meeting.started_at:%Y-%m-%d %H:%M}–{f'{meeting.ended_at:%H:%M}' if meeting.ended_at else '…'} UTC. "
        f"{len(items)} items, {len(decided)} decided. Present: {', '.join(_list_people(meeting, actions, comments))}.",
    ]
    for reason in AgendaReason:
        chosen = [item for item in items if item.reason == reason]
        if chosen:
            lines += ["", f"## {reason.label.capitalize()}"]
        for item in chosen:
            mine = [action for action in actions if item.finding_id in changed[action.pk]]
            said = [comment for comment in comments if comment.finding_id == item.finding_id]
            lines += _write_item(item, mine, said)
    others = [action for action in actions if not changed[action.pk] & {item.finding_id for item in items}]
    if others:
        lines += ["", "## Beside the agenda", "", *(f"- {_write_action(action)}" for action in others)]
    return "\n".join(lines) + "\n"


def _write_item(item: AgendaItem, actions: list[Action], comments: list[Comment]) -> Iterator[str]:
    finding, validation = item.finding, item.finding.validation
    where = f"{validation.framework.name} {validation.environment.version} × {validation.model.name}"
    yield ""
    yield f"### {item.position}. {finding.number} {escape(finding.check_name)}, {escape(where)}"
    yield ""
    yield escape(finding.result.sentence)
    yield ""
    for action in actions:
        yield f"- **{_write_action(action)}**"
    if not actions:
        yield "- not decided"
    for comment in comments:
        # A comment is Markdown of its own: kept as it was written, set in as a quotation.
        text = comment.text.replace("\n", "\n  > ")
        yield f"- {escape(comment.author.username)}:\n\n  > {text}"


def _write_action(action: Action) -> str:
    undone = " (undone)" if find_undoing(action) is not None else ""
    return f"{escape(action.text)}, {escape(action.actor.username)}{undone}"


def _list_people(meeting: Meeting, actions: list[Action], comments: list[Comment]) -> list[str]:
    names = [meeting.started_by.username, *(action.actor.username for action in actions)]
    names += [comment.author.username for comment in comments]
    return [escape(name) for name in dict.fromkeys(names)]


def escape(text: str) -> str:
    """A text that is no Markdown: its special characters taken literally, on one line."""
    return "".join(f"\\{char}" if char in SPECIAL else char for char in " ".join(text.split()))
