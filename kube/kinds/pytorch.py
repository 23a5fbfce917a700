"""Kind `pytorch`: a PyTorchJob of Kubeflow's Training Operator."""

from typing import Final

from kube.kinds.record import PEERS_FAIL_TOO, RENDEZVOUS_PORT, Kind, Resource, State

JOB: Final = Resource(
    group="kubeflow.org",
    version="v1",
    kind="PyTorchJob",
    plural="pytorchjobs",
    title="PyTorchJob",
    states={
        "Succeeded": State.SUCCEEDED,
        "Failed": State.FAILED,
        "Suspended": State.SUSPENDED,
        "Restarting": State.RESTARTING,
    },
)

CONTAINER: Final = "pytorch"
"""Name that the operator requires for the training container."""

KIND: Final = Kind(
    resource=JOB,
    capabilities=frozenset(
        {
            "hyperparameters",
            "torchtitan",
            "min_nodes",
            "deadline_seconds",
            "attempt_deadline_seconds",
            "state: suspended",
            "success: first",
        }
    ),
    objects="PyTorchJob `kubeflow.org/v1`, PodGroup",
    needs="Volcano, Kubeflow Training Operator 1.8 or 1.9",
    after_fault=f"failed containers restart in their pods; {PEERS_FAIL_TOO}",
    operator="training-operator",
    containers=(CONTAINER,),
    service="none",
    ports=frozenset({RENDEZVOUS_PORT}),
)
