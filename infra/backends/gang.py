"""What every kind of job is built from: a gang of equal pods that start and fail together."""

from dataclasses import dataclass
from typing import Final

from infra.manifests import ADOPTED, NOT_AWAITED, RUN_LABEL, Manifest
from infra.pods import Pod
from training.exit_codes import BAD_INPUT

RENDEZVOUS_PORT: Final = 23456
"""Port of rank 0's rendezvous; also the default of Volcano's pytorch plugin."""

NEVER_RETRIED: Final = BAD_INPUT
"""Exit code of a program that would fail again in the same way."""

RUN_ANNOTATIONS: Final = {**NOT_AWAITED, **ADOPTED}


@dataclass(frozen=True, kw_only=True)
class Gang:
    """A run: `nodes` pods made from `pod`, whose command a backend completes with the rendezvous.

    `pod.command` holds what torchrun is to start (`-m`, module, arguments). Times are seconds.
    """

    name: str
    namespace: str
    queue: str
    nodes: int
    processes: int
    pod: Pod
    retries: int
    priority_class: str | None = None
    deadline_seconds: int | None = None
    ttl_seconds: int | None = None

    @property
    def selector(self) -> dict[str, str]:
        """The label that this run's pods have and no others."""
        return {RUN_LABEL: self.name}


def metadata(gang: Gang, annotations: dict[str, str] | None = None) -> Manifest:
    """Metadata of an object that belongs to the run."""
    return {
        "name": gang.name,
        "namespace": gang.namespace,
        "labels": dict(gang.pod.labels),
        "annotations": {**RUN_ANNOTATIONS, **(annotations or {})},
    }


def torchrun(gang: Gang) -> list[str]:
    """The container's command; Kubernetes replaces $(NAME) by the variable of that name.

    Several nodes find each other by RANK, MASTER_ADDR and MASTER_PORT, which the job kind
    provides; a single one needs no address.
    """
    if gang.nodes == 1:
        rendezvous = ["--standalone"]
    else:
        rendezvous = [
            "--node-rank=$(RANK)",
            "--master-addr=$(MASTER_ADDR)",
            "--master-port=$(MASTER_PORT)",
        ]
    return [
        "python3",
        "-m",
        "training.launch",
        f"--nnodes={gang.nodes}",
        f"--nproc-per-node={gang.processes}",
        *rendezvous,
        *gang.pod.command,
    ]
