"""Objects for a schedule: a CronJob, and the permissions of the program that starts the runs."""

import json
from dataclasses import replace
from typing import Any, Final

from infra.api_client import ApiClient
from infra.kinds.gang import Gang
from infra.kinds.indexed import failure_policy
from infra.manifests import Manifest, compact
from infra.pods import pod_template
from infra.settings.training.schedule import ScheduleSettings
from kube.kinds.volcano import ATTEMPT_FAILED, FLOW, TEMPLATE, TRAINING_STEP, template_name

PROGRAM: Final = "schedule"
_CONTAINER: Final = "attempt"
_RESTARTS: Final = 10
"""Maximum number of restarts of the program that starts a run. Evictions do not count. After a
restart, the program finds the run that it has already started."""


def schedule_objects(
    key: str,
    gang: Gang,
    settings: ScheduleSettings,
    *,
    image: Any,
    isolated: bool,
    pull_secret: str | None,
) -> list[Manifest]:
    """Return, in the order of creation, the objects that start runs from the gang's templates."""
    client = ApiClient(name=f"{key}-{PROGRAM}", namespace=gang.namespace, program=PROGRAM)
    steps = {TRAINING_STEP: list(gang.after)} | {each.name: [*each.after] for each in gang.steps}
    plan = json.dumps({"run": gang.name, "steps": steps})
    pod = client.pod(
        _CONTAINER,
        gang.pod.gpu_nodes,
        image=image,
        command=["python3", "-m", "recorder", "attempt", plan],
        cpu=settings.cpu,
        memory=settings.memory,
    )
    pod = replace(
        pod,
        restart_policy="Never",
        env={
            "JOB_NAME": _label("batch.kubernetes.io/job-name"),
            "JOB_UID": _label("batch.kubernetes.io/controller-uid"),
        },
    )
    job = {
        "backoffLimit": _RESTARTS,
        "podFailurePolicy": failure_policy(_CONTAINER, [ATTEMPT_FAILED]),
        "template": pod_template(pod),
    }
    return [
        client.account(pull_secret),
        client.role(_rules([template_name(gang.name, step) for step in steps])),
        client.binding(),
        *([client.allow_ports(settings.api_ports)] if isolated else []),
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": client.metadata,
            "spec": compact(
                {
                    "schedule": settings.cron,
                    "timeZone": settings.time_zone,
                    "suspend": settings.suspend,
                    # The program does not exit until its run ends, so runs never overlap.
                    "concurrencyPolicy": "Forbid",
                    "startingDeadlineSeconds": settings.start_within_seconds,
                    "successfulJobsHistoryLimit": settings.keep_succeeded,
                    "failedJobsHistoryLimit": settings.keep_failed,
                    "jobTemplate": {"spec": job},
                }
            ),
        },
    ]


def _rules(templates: list[str]) -> list[dict[str, Any]]:
    """Return the RBAC rules for reading and copying the templates, and for creating a JobFlow."""
    api_groups = [FLOW.group]
    return [
        {
            "apiGroups": api_groups,
            "resources": [TEMPLATE.plural],
            "resourceNames": templates,
            "verbs": ["get"],
        },
        {"apiGroups": api_groups, "resources": [TEMPLATE.plural], "verbs": ["create"]},
        {"apiGroups": api_groups, "resources": [FLOW.plural], "verbs": ["create", "get"]},
    ]


def _label(name: str) -> Manifest:
    return {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{name}']"}}}
