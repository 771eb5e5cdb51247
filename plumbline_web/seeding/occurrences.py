"""Made-up decisions: every third of the older findings is one of the made-up problems, as a person said."""

from __future__ import annotations

from django.db import connection

from plumbline_web.problems.models import Problem
from plumbline_web.problems.seed import MADE_UP

FINDINGS_OF_ACTION = 20

STATEMENTS = (
    """
    CREATE TEMPORARY TABLE seeded_decisions ON COMMIT DROP AS
    SELECT finding.id AS finding_id, finding.decided_by_id AS actor_id, finding.decided_at AS at,
        problem.id AS problem_id,
        (row_number() OVER (PARTITION BY finding.decided_by_id ORDER BY finding.id) - 1) / %(of_action)s AS part
    FROM validations_finding finding
    JOIN (
        SELECT id, row_number() OVER (ORDER BY id) - 1 AS place FROM problems_problem WHERE slug LIKE %(slugs)s
    ) problem ON problem.place = finding.id * 7919 %% %(problems)s
    WHERE finding.state = 'decided' AND finding.decision = 'inconclusive' AND finding.id %% 3 = 0
    """,
    """
    INSERT INTO triage_action (kind, actor_id, at, text)
    SELECT 'decide', actor_id, max(at), 'decided: confirmed, known; made up, part ' || part
    FROM seeded_decisions GROUP BY actor_id, part
    """,
    """
    INSERT INTO triage_occurrence (finding_id, problem_id, holds, stands, action_id)
    SELECT finding_id, problem_id, true, true, action.id
    FROM seeded_decisions decision JOIN triage_action action ON action.actor_id = decision.actor_id
        AND action.text = 'decided: confirmed, known; made up, part ' || decision.part
    """,
    """
    UPDATE validations_finding finding SET decision = 'known'
    FROM seeded_decisions WHERE finding.id = seeded_decisions.finding_id
    """,
)


def seed_occurrences() -> int:
    """Decide about made-up findings; how many occurrences that gave. Within a transaction, once problems are made."""
    slugs = f"{MADE_UP}-%"
    problems = Problem.objects.filter(slug__startswith=f"{MADE_UP}-").count()
    if not problems:
        return 0
    with connection.cursor() as cursor:
        for statement in STATEMENTS:
            cursor.execute(statement, {"slugs": slugs, "problems": problems, "of_action": FINDINGS_OF_ACTION})
        made = int(cursor.rowcount)
        cursor.execute("ANALYZE triage_action, triage_occurrence, validations_finding")
    return made
