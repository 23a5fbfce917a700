"""Training jobs: one specification for all kinds."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from infra.settings.jobs.consistency import contradictions
from infra.settings.jobs.mounts import ReferenceSettings, VolumeSettings
from infra.settings.jobs.network import NcclSettings, RdmaSettings
from infra.settings.jobs.placement import NetworkTopologySettings, PackingSettings
from infra.settings.jobs.steps import StepName, StepSettings
from infra.settings.schema import DECIDED_BY_STACK
from infra.settings.types import (
    CpuQuantity,
    DnsLabel,
    DnsName,
    EnvironmentName,
    Labels,
    LabelValue,
    MemoryQuantity,
    PositiveInt,
    QualifiedName,
    RunKey,
    Settings,
)
from kube.kinds import KINDS, JobKind
from kube.shared_memory import default_shm
from training.config import TrainingConfig
from workload.exit_codes import BAD_INPUT

_LONGEST_POD_NAME: Final = 63
"""A pod's name is its host name, which is a DNS label."""


class LauncherSettings(Settings):
    """The pod that starts the others and computes nothing: MPI's launcher, Ray's head."""

    cpu: CpuQuantity = Field(default="1", description="CPU request")
    memory: MemoryQuantity = Field(default="2Gi", description="memory request and limit")


class TrainingJobSettings(Settings):
    """One training job; a change of it is a new run."""

    kind: JobKind = Field(
        default="volcano",
        description="what the job is made of; docs/jobs.md tells what each kind can do",
    )
    image: DnsLabel = Field(default="training", description="name of the image")
    command: list[str] | None = Field(
        default=None,
        min_length=1,
        description="own command with its arguments in place of this repository's program; "
        "$(NAME) is replaced by the variable of that name",
    )
    queue: DnsName = Field(description="Volcano queue that it waits in")
    priority_class: DnsName | None = Field(default=None, description="priority class of its pods")
    nodes: PositiveInt = Field(
        default=1, le=4096, description="pods, which are scheduled all or none"
    )
    min_nodes: PositiveInt | None = Field(
        default=None, description="fewest pods to start and to go on with, of an elastic job"
    )
    gpus_per_node: PositiveInt = Field(
        default=1, le=64, description="GPUs of each pod, and processes in it"
    )
    gpu_resource: QualifiedName | None = Field(
        default=None, description="name of the GPU resource where it is not that of the stack"
    )
    gpu_product: LabelValue | None = Field(
        default=None, description="only nodes with this GPU (label nvidia.com/gpu.product)"
    )
    node_gpus: PositiveInt | None = Field(
        default=None, description="only nodes with this many GPUs (label nvidia.com/gpu.count)"
    )
    whole_node: bool = Field(
        default=False,
        description="each pod has its node to itself: no other workload of this project",
    )
    cpu: CpuQuantity = Field(description="CPU request of each pod; there is no CPU limit")
    memory: MemoryQuantity = Field(description="memory request and limit of each pod")
    shm: MemoryQuantity | None = Field(
        default=None,
        description="size of /dev/shm, part of the memory limit; null gives 4Gi for each GPU, but "
        "at most half of the memory",
    )
    launcher: LauncherSettings | None = Field(
        default=None,
        description="resources of the pod that starts the others, with kind mpi or ray",
    )
    checkpoints: DnsLabel = Field(
        default="checkpoints", description="claim for checkpoints and exports"
    )
    datasets: DnsLabel | None = Field(
        default=None, description="claim with data sets, mounted read-only"
    )
    volumes: dict[DnsLabel, VolumeSettings] = Field(
        default={}, description="further volumes by name"
    )
    hyperparameters: TrainingConfig | None = Field(
        default=None, description="configuration of the training program; needed without a command"
    )
    env: dict[EnvironmentName, str] = Field(default={}, description="further environment variables")
    env_from: dict[EnvironmentName, ReferenceSettings] = Field(
        default={}, description="environment variables whose values stand in Secrets or ConfigMaps"
    )
    omp_threads: PositiveInt | None = Field(default=None, description="CPU threads of each process")
    rdma: RdmaSettings | None = Field(default=None, description="direct network between nodes")
    nccl: NcclSettings | None = Field(
        default=None, description="how NCCL uses the network between nodes"
    )
    host_network: bool = Field(
        default=False, description="pods use the node's network, where RDMA has no device in pods"
    )
    spread: bool = Field(default=True, description="distribute the pods evenly over the nodes")
    pack: PackingSettings | None = Field(default=None, description="keep the pods within a part")
    network_topology: NetworkTopologySettings | None = Field(
        default=None, description="keep the pods close in the network; needs Volcano 1.11 or later"
    )
    node_selector: Labels = Field(
        default={}, description="further labels of nodes that it may run on"
    )
    annotations: dict[QualifiedName, str] = Field(
        default={},
        description="annotations of the pods, as other tools want them (hang tracers, sidecars)",
    )
    retries: PositiveInt = Field(
        default=3, le=100, description="restarts before the run has failed"
    )
    fatal_exit_codes: list[Annotated[int, Field(ge=1, le=255)]] = Field(
        default=[BAD_INPUT],
        max_length=20,
        description="exit codes after which the run ends at once, instead of being restarted",
    )
    success: Literal["all", "first"] | None = Field(
        default=None,
        description="whether all pods or the first one must end well; null is the kind's own rule",
    )
    suspend: bool = Field(
        default=False,
        description="hold the run without pods until it is false again; not a new run",
    )
    steps: dict[StepName, StepSettings] = Field(
        default={},
        description="what runs before and after the training, such as prepare and evaluate",
    )
    after: list[StepName] = Field(default=[], description="steps that the training waits for")
    deadline_seconds: PositiveInt | None = Field(
        default=None, description="longest life of the run, restarts included"
    )
    attempt_deadline_seconds: PositiveInt | None = Field(
        default=None, description="longest life of a pod, after which it counts as failed"
    )
    ttl_seconds: int | None = Field(
        default=None, ge=0, description="how long a finished run stays visible; null keeps it"
    )
    attempt: PositiveInt = Field(
        default=1, description="a higher number runs the same specification again, as a new run"
    )
    grace_seconds: int = Field(
        default=60,
        ge=0,
        le=3600,
        description="time to save a checkpoint when pods are asked to leave",
    )
    on_change: Literal["keep", "replace"] = Field(
        default="keep",
        description="what happens to the run of an earlier specification: keep leaves it in the "
        "cluster, running or finished, replace deletes it",
    )

    @field_validator("hyperparameters")
    @classmethod
    def _folders_are_not_written(cls, config: TrainingConfig | None) -> TrainingConfig | None:
        if config is not None and (given := DECIDED_BY_STACK & config.model_fields_set):
            raise ValueError(
                f"sets {', '.join(sorted(given))}, which the stack decides: leave it out"
            )
        return config

    @field_validator("fatal_exit_codes")
    @classmethod
    def _codes_differ(cls, codes: list[int]) -> list[int]:
        if len(set(codes)) < len(codes):
            raise ValueError("has a code twice: write each once")
        return codes

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := list(contradictions(self)):
            raise ValueError("; it ".join(problems))
        return self

    @property
    def shared_memory(self) -> str:
        """Size of /dev/shm."""
        return self.shm or default_shm(self.gpus_per_node, self.memory)

    @property
    def min_pods(self) -> int:
        """Pods that must find room together."""
        return self.min_nodes or self.nodes

    @property
    def several_pods(self) -> bool:
        """Whether more than one pod mounts the claims."""
        return self.nodes > 1 or KINDS[self.kind].has_launcher or bool(self.steps)

    @property
    def node_labels(self) -> dict[str, str]:
        """Labels that a node must have beside those of all GPU nodes."""
        product = {} if self.gpu_product is None else {"nvidia.com/gpu.product": self.gpu_product}
        count = {} if self.node_gpus is None else {"nvidia.com/gpu.count": str(self.node_gpus)}
        return {**product, **count, **self.node_selector}


class TrainingSettings(Settings):
    """Training jobs by key."""

    jobs: dict[RunKey, TrainingJobSettings] = Field(
        default={}, description="jobs; a run is named <key>-<hash of its specification>"
    )

    @model_validator(mode="after")
    def _names_are_short_enough(self) -> Self:
        for key, job in self.jobs.items():
            run = len(f"{key}-12345678")
            suffix = KINDS[job.kind].pod_suffix.format(last=job.nodes - 1)
            limit = KINDS[job.kind].max_run_name or _LONGEST_POD_NAME - len(suffix)
            if run > limit:
                raise ValueError(
                    f"has job {key!r} of kind {job.kind!r}: the names of its runs would have {run} "
                    f"characters, but the kind allows {limit}. Write a shorter key"
                )
            for step in job.steps:
                # <run>-<hash>-<step>-<task>-<index>, as a JobFlow names the pods of a step.
                longest = run + len(f"-12345678-{step}-worker-{job.nodes}")
                if longest > _LONGEST_POD_NAME:
                    raise ValueError(
                        f"has job {key!r} with the step {step!r}: names of its pods would have "
                        f"{longest} characters, but {_LONGEST_POD_NAME} are allowed. Write a "
                        "shorter key or step name"
                    )
        return self
