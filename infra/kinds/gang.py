"""Gangs of identical pods that start and fail together, and common parts of their manifests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from infra.manifests import ADOPTED, NOT_AWAITED, Manifest, compact
from infra.pods import Pod, pod_template
from infra.settings.training.job import NotebookSettings
from kube.names import GROUP_ANNOTATION, QUEUE_ANNOTATION, ROLE_LABEL, RUN_LABEL, SCHEDULING_GROUP
from workload.exit_codes import BAD_INPUT

RUN_ANNOTATIONS: Final = {**NOT_AWAITED, **ADOPTED}

LAUNCHER_LABEL: Final = {ROLE_LABEL: "leader"}
WORKER_LABEL: Final = {ROLE_LABEL: "worker"}
"""Role labels of the pods in job kinds with a launcher. In jobs with steps, the gang's pods have
the `worker` role regardless of the kind."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One pod that runs before or after the gang, once the steps in `after` have succeeded."""

    name: str
    pod: Pod
    after: Sequence[str] = ()
    retries: int | None = None
    """Maximum number of retries. If None, the gang's maximum applies."""


@dataclass(frozen=True, kw_only=True)
class Gang:
    """A run of `size` pods built from `pod`.

    `pod.command` contains torchrun's arguments (`-m`, module, arguments), and the kind's builder
    adds the rendezvous arguments. If `custom_command` is True, `pod.command` is the complete
    command. In kinds with a launcher, `launcher` is the pod of the MPI launcher or the Ray head.
    In kinds that support them, `suspend` and `stop` terminate the pods. A stopped run cannot be
    resumed.
    """

    name: str
    namespace: str
    queue: str
    size: int
    processes: int
    pod: Pod
    retries: int
    custom_command: bool = False
    min_size: int | None = None
    launcher: Pod | None = None
    fatal_exit_codes: Sequence[int] = (BAD_INPUT,)
    success: str | None = None
    suspend: bool = False
    stop: bool = False
    priority_class: str | None = None
    deadline_seconds: int | None = None
    network_topology: Mapping[str, object] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    after: Sequence[str] = ()
    """Names of the steps that must succeed before the gang starts."""
    wrapper: Sequence[str] = ()
    """Prefix of the training command: a program that reads the inputs and executes the command."""
    is_flow: bool = False
    """True if a JobFlow must start training even without steps."""
    notebook: NotebookSettings | None = None

    @property
    def selector(self) -> dict[str, str]:
        """Label that selects this run's pods."""
        return {RUN_LABEL: self.name}

    @property
    def minimum(self) -> int:
        """Minimum number of pods, which are placed together or not at all."""
        return self.min_size or self.size

    @property
    def is_elastic(self) -> bool:
        """True if the gang may run with fewer pods than `size`."""
        return self.minimum < self.size

    @property
    def size_range(self) -> str:
        """The size in the format of torchrun's `--nnodes`: `4`, or `2:4` for an elastic gang."""
        return f"{self.minimum}:{self.size}" if self.is_elastic else str(self.size)


def command(gang: Gang) -> list[str]:
    """Return the container's command; Kubernetes replaces $(NAME) with the variable's value.

    The pods of a gang find each other through RANK, MASTER_ADDR and MASTER_PORT, which the kind
    provides. A single pod needs none of them.
    """
    if gang.custom_command:
        return [*gang.wrapper, *gang.pod.command]
    return [
        *gang.wrapper,
        "python3",
        "-m",
        "training.launch",
        f"--nnodes={gang.size_range}",
        f"--nproc-per-node={gang.processes}",
        *_rendezvous(gang),
        *gang.pod.command,
    ]


def _rendezvous(gang: Gang) -> list[str]:
    if gang.size == 1:
        return ["--standalone"]
    if gang.is_elastic:
        # Ranks are not fixed: torchrun reassigns them whenever a pod joins or leaves.
        return [
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=$(MASTER_ADDR):$(MASTER_PORT)",
            f"--rdzv-id={gang.name}",
            f"--max-restarts={gang.retries}",
        ]
    return ["--node-rank=$(RANK)", "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)"]


def command_variables(gang: Gang) -> dict[str, str]:
    """Return the environment variables that a command needs, except the rendezvous variables.

    A custom command gets NNODES and NPROC_PER_NODE in torchrun's format.
    """
    variables = {}
    if gang.is_elastic:
        # If the process group used the rendezvous store, processes that restart after a pod has
        # left would read addresses of the previous attempt, and fail until no restarts remain.
        variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if gang.custom_command:
        variables |= {"NNODES": gang.size_range, "NPROC_PER_NODE": str(gang.processes)}
    return variables


def metadata(gang: Gang, labels: Mapping[str, str] | None = None) -> Manifest:
    """Return the metadata for one of the run's objects."""
    run_labels = {k: v for k, v in gang.pod.labels.items() if k not in WORKER_LABEL}
    return {
        "name": gang.name,
        "namespace": gang.namespace,
        "labels": {**run_labels, **(labels or {})},
        "annotations": dict(RUN_ANNOTATIONS),
    }


def pod_group(gang: Gang, *, additional: int = 0) -> Manifest:
    """Return the PodGroup of a run that is not a Volcano Job.

    `additional` is the number of other pods that must be placed together with the gang.
    """
    return {
        "apiVersion": f"{SCHEDULING_GROUP}/v1beta1",
        "kind": "PodGroup",
        "metadata": metadata(gang),
        "spec": compact(
            {
                "minMember": gang.minimum + additional,
                "queue": gang.queue,
                "priorityClassName": gang.priority_class,
                "networkTopology": dict(gang.network_topology),
            }
        ),
    }


def volcano_pod_template(gang: Gang, pod: Pod, *, restart_policy: str = "Never") -> Manifest:
    """Return the template for a pod that Volcano schedules."""
    return pod_template(
        replace(
            pod,
            scheduler="volcano",
            restart_policy=restart_policy,
            priority_class=gang.priority_class,
        )
    )


def pod_group_template(gang: Gang, pod: Pod, *, restart_policy: str = "Never") -> Manifest:
    """Return the template for a pod in the run's PodGroup."""
    group = {GROUP_ANNOTATION: gang.name, QUEUE_ANNOTATION: gang.queue}
    pod_in_group = replace(pod, annotations={**pod.annotations, **group})
    return volcano_pod_template(gang, pod_in_group, restart_policy=restart_policy)
