"""Training jobs."""

from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from infra.settings.types import (
    CpuQuantity,
    DnsLabel,
    DnsName,
    EnvironmentName,
    Labels,
    MemoryQuantity,
    PositiveInt,
    QualifiedName,
    RunKey,
    Settings,
    parse_quantity,
)
from training.config import TrainingConfig

DECIDED_BY_STACK: Final = frozenset({"run_dir", "data_dir"})
"""Hyperparameters that follow from the run's name and the claims, and are not to be written."""


class RdmaSettings(Settings):
    """A direct network between GPUs of several nodes (InfiniBand or RoCE)."""

    resource: QualifiedName = Field(description="name of the RDMA device, such as rdma/hca")
    count: PositiveInt = Field(1, description="devices for each pod")
    interface: str = Field(
        min_length=1, description="network interface of NCCL's first contact (NCCL_SOCKET_IFNAME)"
    )
    hca: str | None = Field(None, description="RDMA adapters that NCCL uses (NCCL_IB_HCA)")


class TrainingJobSettings(Settings):
    """One training job; a change of it is a new run."""

    kind: Literal["volcano", "indexed"] = Field(
        "volcano", description="Volcano Job, or an Indexed Job of Kubernetes itself"
    )
    image: DnsLabel = Field("training", description="name of the image")
    queue: DnsName = Field(description="Volcano queue that it waits in")
    priority_class: DnsName | None = Field(None, description="priority class of its pods")
    nodes: PositiveInt = Field(1, le=4096, description="pods, which are scheduled all or none")
    gpus_per_node: PositiveInt = Field(
        1, le=64, description="GPUs of each pod, and processes in it"
    )
    gpu_resource: QualifiedName | None = Field(
        None, description="name of the GPU resource where it is not that of the stack"
    )
    cpu: CpuQuantity = Field(description="CPU request of each pod; there is no CPU limit")
    memory: MemoryQuantity = Field(description="memory request and limit of each pod")
    shm: MemoryQuantity = Field("1Gi", description="size of /dev/shm, part of the memory limit")
    checkpoints: DnsLabel = Field("checkpoints", description="claim for checkpoints and exports")
    datasets: DnsLabel | None = Field(None, description="claim with data sets, mounted read-only")
    hyperparameters: TrainingConfig = Field(description="configuration of the training program")
    env: dict[EnvironmentName, str] = Field({}, description="further environment variables")
    omp_threads: PositiveInt | None = Field(None, description="CPU threads of each process")
    rdma: RdmaSettings | None = Field(None, description="direct network between nodes")
    spread: bool = Field(True, description="distribute the pods evenly over the nodes")
    node_selector: Labels = Field({}, description="further labels of nodes that it may run on")
    retries: PositiveInt = Field(3, le=100, description="restarts before the run has failed")
    deadline_seconds: PositiveInt | None = Field(
        None, description="longest life of the run, restarts included; only with kind indexed"
    )
    attempt_deadline_seconds: PositiveInt | None = Field(
        None, description="longest life of a pod, after which it counts as failed"
    )
    ttl_seconds: int | None = Field(
        None, ge=0, description="how long a finished run stays visible; null keeps it"
    )
    attempt: PositiveInt = Field(
        1, description="a higher number runs the same specification again, as a new run"
    )
    grace_seconds: int = Field(
        60, ge=0, le=3600, description="time to save a checkpoint when pods are asked to leave"
    )
    on_change: Literal["keep", "replace"] = Field(
        "keep",
        description="what happens to the run of an earlier specification: keep leaves it in the "
        "cluster, running or finished, replace deletes it",
    )

    @field_validator("hyperparameters")
    @classmethod
    def _folders_are_not_written(cls, config: TrainingConfig) -> TrainingConfig:
        if given := DECIDED_BY_STACK & config.model_fields_set:
            raise ValueError(
                f"sets {', '.join(sorted(given))}, which the stack decides: leave it out"
            )
        return config

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if parse_quantity(self.shm) >= parse_quantity(self.memory):
            raise ValueError(
                f"has shm {self.shm}, but memory {self.memory}: /dev/shm counts against the memory "
                "limit, so write less shm or more memory"
            )
        if self.kind == "volcano" and self.deadline_seconds is not None:
            raise ValueError(
                "sets deadline_seconds, which Volcano Jobs do not have: write "
                "attempt_deadline_seconds, or kind indexed"
            )
        if self.rdma is not None and self.nodes == 1:
            raise ValueError("has rdma but a single node: leave rdma out, or write nodes above 1")
        return self


class TrainingSettings(Settings):
    """Training jobs by key."""

    jobs: dict[RunKey, TrainingJobSettings] = Field(
        {}, description="jobs; a run is named <key>-<hash of its specification>"
    )
