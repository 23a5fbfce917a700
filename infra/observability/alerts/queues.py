"""Jobs that wait too long, and what is used up."""

from infra.observability.queue_wait import of_group
from infra.observability.rule import Alert
from infra.settings.monitoring import Thresholds


def alerts(limits: Thresholds) -> list[Alert]:
    """The alerts."""
    known = of_group("volcano_e2e_job_scheduling_start_time", "job_id")
    return [
        Alert(
            name="GangPendingTooLong",
            # The number of pods has the job's name alone.
            expr=f"group by (namespace, queue, job_id) ({known}) * on (job_id) group_left () "
            "max by (job_id) (volcano_unschedule_task_count) > 0",
            minutes=limits.pending_minutes,
            severity="warning",
            summary="Job {{ $labels.namespace }}/{{ $labels.job_id }} waits in queue "
            "{{ $labels.queue }}: {{ $value }} of its pods have no node",
            does="python -m gitops status tells why, in Volcano's words.",
        ),
        Alert(
            name="QuotaExhausted",
            expr="max by (namespace, resourcequota, resource) "
            '(kube_resourcequota{type="used", resource=~"requests.*gpu.*|requests.*mig.*"}) '
            ">= on (namespace, resourcequota, resource) "
            "max by (namespace, resourcequota, resource) "
            '(kube_resourcequota{type="hard"}) > 0',
            minutes=limits.exhausted_minutes,
            severity="info",
            summary="{{ $labels.namespace }} uses all of its {{ $labels.resource }}",
            does="New pods are refused: end something, or raise tenancy.quota.",
        ),
    ]
