"""The statements of `seed`, in order.

`seeded` is a view of the new validations, each with its kind; `seeded_verdicts` what the checks say of a kind.
"""

from __future__ import annotations

from collections.abc import Mapping

STATEMENTS: Mapping[str, str] = {
    "runs": """
        INSERT INTO validations_frameworkrun (
            need, framework_id, environment_id, model_id, spec, steps, modules, memory, "full", time_limit_s, state,
            created_at, started_at, ended_at, ending, exit_code, elapsed_s, peak_memory_bytes, last_error, last_output,
            unreadable, device)
        SELECT 'seed-' || id, framework_id, environment_id, model_id, spec, '{1,3}', '', false, false, time_limit_s,
            CASE state WHEN 'done' THEN 'ended' ELSE state END, created_at, started_at, ended_at,
            CASE state WHEN 'done' THEN 'completed' ELSE '' END, CASE state WHEN 'done' THEN 0 END,
            extract(epoch FROM ended_at - started_at), 513216512, '', '', '', 'CPU'
        FROM seeded
    """,
    "links": """
        INSERT INTO validations_validationrun (validation_id, run_id, role, reused)
        SELECT seeded.id, run.id, 'run', false
        FROM seeded JOIN validations_frameworkrun run ON run.need = 'seed-' || seeded.id
    """,
    "results": """
        INSERT INTO validations_checkresult (
            validation_id, framework_id, environment_id, model_id, profile_id, check_name, position, status, sentence,
            pattern, first_wrong, value, threshold, detection_limit, elapsed_s, document, plumbline, judged_at)
        SELECT seeded.id, framework_id, environment_id, model_id, profile_id, name, position, status, sentence, pattern,
            first_wrong, value, threshold, detection_limit, 0.01, document, '0.1.0', ended_at
        FROM seeded JOIN seeded_verdicts USING (kind)
        WHERE seeded.state = 'done'
    """,
    # A team decides within a week or two; what is older was decided.
    "findings": """
        INSERT INTO validations_finding (validation_id, result_id, check_name, pattern, silent, signature, "group",
            regressed, state, decision, reason, decided_by_id, decided_at, version, created_at)
        SELECT validation_id, id, check_name, pattern, check_name <> 'run.completes', signature, signature,
            id % 20 = 0, CASE WHEN is_new THEN 'open' ELSE 'decided' END,
            CASE WHEN is_new THEN '' ELSE 'inconclusive' END, '',
            CASE WHEN NOT is_new THEN owner_id END, CASE WHEN NOT is_new THEN judged_at END, 1, judged_at
        FROM (
            SELECT result.*, seeded.owner_id,
                encode(sha256((result.check_name || seeded.kind || result.model_id)::bytea), 'hex') AS signature,
                seeded.ended_at > (SELECT max(ended_at) FROM seeded) - interval '10 days' AS is_new
            FROM seeded JOIN validations_checkresult result ON result.validation_id = seeded.id
        ) result
        WHERE result.status = 'fail'
    """,
    "events": """
        INSERT INTO timeline_event (subject, subject_id, at, actor_id, text, data)
        SELECT 'validation', id, created_at, owner_id, 'submitted', '{}'::jsonb FROM seeded
        UNION ALL
        SELECT 'validation', id, ended_at, NULL, 'ended: ' || verdict, '{}'::jsonb FROM seeded WHERE state = 'done'
    """,
    "cells": """
        INSERT INTO validations_cell (
            framework_id, environment_id, model_id, profile_id, latest_id, conclusive_id, last_good_id, first_bad_id,
            count)
        SELECT framework_id, environment_id, model_id, profile_id, latest, conclusive, good,
            CASE WHEN conclusive <> good OR good IS NULL THEN bad END, count
        FROM (
            SELECT framework_id, environment_id, model_id, profile_id, max(id) AS latest,
                max(id) FILTER (WHERE verdict IN ('pass', 'fail')) AS conclusive, max(last_good) AS good,
                min(id) FILTER (WHERE verdict = 'fail' AND id > coalesce(last_good, 0)) AS bad, count(*) AS count
            FROM (
                SELECT seeded.*, max(id) FILTER (WHERE verdict = 'pass') OVER (
                    PARTITION BY framework_id, environment_id, model_id, profile_id) AS last_good
                FROM seeded WHERE state = 'done'
            ) ended
            GROUP BY framework_id, environment_id, model_id, profile_id
        ) cells
        ON CONFLICT DO NOTHING
    """,
}
