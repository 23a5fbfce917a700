"""Kind `jobset`: a JobSet with one Indexed Job."""

from typing import Final

from kube.kinds.record import GANG_RESTARTS, RENDEZVOUS_PORT, Kind, Resource, State

JOB: Final = Resource(
    group="jobset.x-k8s.io",
    version="v1alpha2",
    kind="JobSet",
    plural="jobsets",
    title="JobSet",
    states={
        "Completed": State.SUCCEEDED,
        "Failed": State.FAILED,
        "Suspended": State.SUSPENDED,
    },
    restarts=("restarts",),
)

KIND: Final = Kind(
    resource=JOB,
    # `deadline_seconds` is not supported: a deadline on the Job would restart with each attempt.
    capabilities=frozenset(
        {
            "hyperparameters",
            "torchtitan",
            "attempt_deadline_seconds",
            "state: suspended",
            "success: all",
            "success: first",
            "fatal_exit_codes",
        }
    ),
    objects="JobSet `jobset.x-k8s.io/v1alpha2`, PodGroup",
    # Earlier releases have no rules for fatal exit codes.
    needs="Volcano, JobSet 0.6 or later",
    after_fault=GANG_RESTARTS,
    operator="trainer",
    pod_suffix="-worker-0-{last}-abcde",
    ports=frozenset({RENDEZVOUS_PORT}),
)
