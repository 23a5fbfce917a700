"""Runs that do not get on, as the training program, kubelet and Volcano tell."""

from infra.observability.recording import OF_RUNS, named_by_run
from infra.observability.rule import ON_POD, Alert, duration
from infra.settings.monitoring import Thresholds

_RUN = "{{ $labels.namespace }}/{{ $labels.run }}"
_POD = "{{ $labels.namespace }}/{{ $labels.pod }}"


def alerts(limits: Thresholds) -> list[Alert]:
    """The alerts."""
    stalled = duration(limits.stalled_minutes)
    age = duration(limits.checkpoint_minutes)
    return [
        Alert(
            name="TrainingWithoutStep",
            expr="(max by (namespace, run) "
            f"(increase(training_step_seconds_count[{stalled}])) == 0 "
            f"and on (namespace, run) max by (namespace, run) (training_info offset {stalled})) "
            # A process that is stopped altogether answers nobody.
            f'or (max by (namespace, run) (max_over_time(up{{run!=""}}[{stalled}])) == 0 '
            "and on (namespace, run) max by (namespace, run) "
            f'(up{{run!=""}} offset {stalled}))',
            minutes=limits.stalled_minutes / 20,
            severity="critical",
            summary=f"{_RUN} makes no steps",
            does="Read the last lines of rank 0, then of the others: one that is stuck holds up "
            "all. hang_timeout ends such a run by itself.",
        ),
        Alert(
            name="LossNotFinite",
            # Before its first step a process has no loss, which is not a number either.
            expr="max by (namespace, run) "
            "(((training_loss != training_loss) * 0 + 1 or (abs(training_loss) == Inf) * 0 + 1) "
            f"and {ON_POD} training_step_seconds_count > 0)",
            minutes=0,
            severity="critical",
            summary=f"The loss of {_RUN} is not a number any more",
            does="Lower learning_rate, clip gradients, or look for wrong values in the data.",
        ),
        Alert(
            name="CheckpointTooOld",
            expr=f"max by (namespace, run) (changes(training_checkpoint_step[{age}])) == 0 "
            "and on (namespace, run) max by (namespace, run) "
            f"(training_step - training_checkpoint_step) > 0 "
            f"and on (namespace, run) max by (namespace, run) (training_info offset {age})",
            minutes=limits.checkpoint_minutes / 90,
            severity="warning",
            summary=f"{_RUN} has saved nothing for {limits.checkpoint_minutes:g} minutes",
            does="See whether the claim is full or slow; save more often (checkpoint_every).",
        ),
        Alert(
            name="SharedMemoryNearlyFull",
            expr="max by (namespace, pod, run) "
            "(training_shm_used_bytes / training_shm_size_bytes) "
            f"> {limits.shm_share:g}",
            minutes=limits.memory_minutes,
            severity="warning",
            summary=f"The shared memory of {_POD} is nearly full",
            does="Raise the job's `shm`, or lower loader workers: a full /dev/shm ends as a bus "
            "error.",
        ),
        Alert(
            name="ClaimNearlyFull",
            expr="max by (namespace, persistentvolumeclaim) "
            "(kubelet_volume_stats_used_bytes / kubelet_volume_stats_capacity_bytes) "
            f"> {limits.claim_share:g}",
            minutes=limits.claim_minutes,
            severity="warning",
            summary="Claim {{ $labels.namespace }}/{{ $labels.persistentvolumeclaim }} is "
            "nearly full",
            does="Remove old runs, keep less checkpoints (keep_checkpoints), or raise its size.",
        ),
        Alert(
            name="MemoryNearLimit",
            expr="max by (namespace, pod, container) "
            '(container_memory_working_set_bytes{container!="", container!="POD"}) '
            "/ on (namespace, pod, container) max by (namespace, pod, container) "
            '(kube_pod_container_resource_limits{resource="memory"}) '
            f"> {limits.memory_share:g} and {ON_POD} "
            'kube_pod_labels{label_gpu_platform_dev_workload!=""} '
            # Kubelet goes on telling what a pod had when it ended.
            f'and {ON_POD} kube_pod_status_phase{{phase="Running"}} == 1',
            minutes=limits.memory_minutes,
            severity="warning",
            summary=f"{_POD} is about to be killed for its memory",
            does="Raise `memory`; what is in /dev/shm counts as well.",
        ),
        Alert(
            name="RestartsInARow",
            expr="max by (namespace, pod) (increase(kube_pod_container_status_restarts_total[1h]) "
            f'and {ON_POD} kube_pod_labels{{label_gpu_platform_dev_workload!=""}}) '
            f"> {limits.restarts_per_hour}",
            minutes=0,
            severity="critical",
            summary=f"{_POD} is started again and again",
            does="Read its last words: python -m gitops status, kubectl logs --previous.",
        ),
        Alert(
            name="JobRestartsInARow",
            # Volcano has no series of this: volcano_job_retry_counts counts attempts to place a
            # gang, one a second. So: the run's pods of the last hour by the most at a time.
            expr="count by (namespace, run) "
            f"({named_by_run(f'last_over_time({OF_RUNS}[1h])')}) "
            "/ on (namespace, run) max_over_time(gpu_platform:run_pods[1h]) - 1 "
            f"> {limits.restarts_per_hour}",
            minutes=0,
            severity="critical",
            summary=f"{_RUN} is started again and again",
            does="Read its last words: python -m gitops status.",
        ),
    ]
