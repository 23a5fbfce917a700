"""Kind `indexed`: a Kubernetes Indexed Job."""

from typing import Final

from kube.kinds.record import PEERS_FAIL_TOO, RENDEZVOUS_PORT, Kind, Resource, State

JOB: Final = Resource(
    group="batch",
    version="v1",
    kind="Job",
    plural="jobs",
    title="Job",
    states={
        "Complete": State.SUCCEEDED,
        "Failed": State.FAILED,
        "Suspended": State.SUSPENDED,
    },
)

KIND: Final = Kind(
    resource=JOB,
    capabilities=frozenset(
        {
            "hyperparameters",
            "torchtitan",
            "deadline_seconds",
            "attempt_deadline_seconds",
            "state: suspended",
            "success: all",
            "success: first",
            "fatal_exit_codes",
        }
    ),
    objects="`batch/v1` Indexed Job, PodGroup, headless Service",
    needs="Volcano",
    after_fault=f"failed pods are replaced; {PEERS_FAIL_TOO}",
    pod_suffix="-{last}-abcde",
    service="several pods",
    ports=frozenset({RENDEZVOUS_PORT}),
)
