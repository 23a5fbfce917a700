"""Training jobs: one specification for all kinds."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from infra.settings.cluster import TolerationSettings
from infra.settings.inference.access import GatewaySettings
from infra.settings.schema import DERIVED_HYPERPARAMETERS
from infra.settings.training.checks import job_problems
from infra.settings.training.network import NcclSettings, RdmaSettings
from infra.settings.training.schedule import ScheduleSettings
from infra.settings.training.steps import (
    ITEM,
    OutputName,
    Reference,
    StepName,
    StepSettings,
    producers,
)
from infra.settings.training.torchtitan import TorchtitanSettings
from infra.settings.types import (
    Annotations,
    CpuQuantity,
    DeviceName,
    DiskQuantity,
    DnsLabel,
    DnsName,
    EnvironmentName,
    HostNames,
    Labels,
    LabelValue,
    MemoryQuantity,
    PathPrefix,
    PositiveInt,
    QualifiedName,
    Settings,
    matching,
)
from infra.settings.volumes import ReferenceSettings, VolumeSettings
from kube.kinds import KINDS, JobKind
from kube.names import GPU_COUNT_LABEL, GPU_PRODUCT_LABEL
from kube.shared_memory import default_shm
from training.config import TrainingConfig
from workload.exit_codes import BAD_INPUT

NOT_IN_RUN_NAME: Final = {"image", "state", "run", "recreate", "on_change", "schedule"}
"""Settings that the hash in a run's name does not cover.

The hash covers the contents of the image instead of its key. `run` replaces the whole name.
"""


class LauncherSettings(Settings):
    """Resources of the MPI launcher or the Ray head."""

    cpu: CpuQuantity = Field(default="1", description="CPU request.")
    memory: MemoryQuantity = Field(default="2Gi", description="Memory request and limit.")


_NotebookPath = Annotated[
    PathPrefix,
    matching(
        re.compile(r"/([A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*)?"),
        1024,
        "a path of letters, digits, '.', '_', '~' and '-' that does not end with '/', such as "
        "/notebooks/anna",
    ),
]


class NotebookRouteSettings(Settings):
    """Route from a browser outside the cluster to a notebook."""

    gateway: GatewaySettings = Field(description="Gateway to attach to.")
    hostnames: HostNames = Field(
        default=[], description="Host names. If empty, every host name is accepted."
    )
    path: _NotebookPath = Field(
        default="/",
        description="Path prefix of the notebook, such as /notebooks/anna.",
    )

    @model_validator(mode="after")
    def _matches_one_notebook(self) -> Self:
        if self.path == "/" and not self.hostnames:
            raise ValueError(
                "has neither hostnames nor path, so it would receive every request to the Gateway: "
                "set one of them"
            )
        return self


class NotebookSettings(Settings):
    """JupyterLab in a `notebook` job."""

    home: DnsLabel = Field(
        description="Claim that contains the home directory. The directory is named after the "
        "job's key and is kept when the notebook is deleted."
    )
    token_secret: DnsName = Field(
        description="Secret in the notebook's namespace. Its `token` key contains the access token."
    )
    route: NotebookRouteSettings | None = Field(
        default=None,
        description="Route from outside the cluster. If null, only `kubectl port-forward` works.",
    )
    idle_minutes: int = Field(
        default=60,
        ge=1,
        le=7 * 24 * 60,
        description="Time (min) without kernel, terminal or GPU activity after which the "
        "notebook is suspended. JupyterLab shows a warning 10 minutes before the suspension, or "
        "halfway through if this setting is less than 20.",
    )


class PackingSettings(Settings):
    """Placement of the job's pods in one topology domain, such as a zone or a rack."""

    label: QualifiedName = Field(
        description="Node label whose value identifies the domain, such as "
        "topology.kubernetes.io/zone or a label for the rack or switch."
    )
    required: bool = Field(
        default=False,
        description="Require all pods to run in the domain of the first pod, and wait until this "
        "domain has capacity. By default, the domain is only preferred.",
    )


class NetworkTopologySettings(Settings):
    """Limit on the distance between the job's pods in Volcano's network tree (HyperNodes)."""

    mode: Literal["hard", "soft"] = Field(
        default="soft",
        description="`hard`: wait until the pods fit into one HyperNode (see highest_tier); "
        "`soft`: prefer nodes that are close to each other.",
    )
    highest_tier: PositiveInt | None = Field(
        default=None, description="Highest tier that the pods may span; requires `mode: hard`."
    )

    @model_validator(mode="after")
    def _tier_fits_mode(self) -> Self:
        if (self.mode == "hard") != (self.highest_tier is not None):
            raise ValueError(
                f"has mode {self.mode!r} and highest_tier {self.highest_tier}: set highest_tier "
                "if, and only if, mode is hard"
            )
        return self


class TrainingJobSettings(Settings):
    """A training job. Changing it starts a new run."""

    kind: JobKind = Field(
        default="volcano", description="Kind of job; docs/jobs.md compares the kinds."
    )
    image: DnsLabel = Field(default="training", description="Key of the image.")
    command: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Custom command with its arguments, instead of this repository's program. "
        "$(NAME) is replaced with the value of the environment variable NAME.",
    )
    queue: DnsName = Field(description="Volcano queue for the job.")
    priority_class: DnsName | None = Field(default=None, description="Priority class of the pods.")
    nodes: PositiveInt = Field(
        default=1,
        le=4096,
        description="Number of pods. Without min_nodes, either all or none of them are scheduled.",
    )
    min_nodes: PositiveInt | None = Field(
        default=None,
        description="Minimum number of pods of an elastic job. The job starts as soon as this many "
        "pods fit, and can grow to `nodes` pods. If null, the job is not elastic.",
    )
    gpus_per_node: PositiveInt = Field(
        default=1,
        le=64,
        description="Number of GPUs per pod. torchrun, Open MPI and Ray start one process per GPU.",
    )
    gpu_resource: DeviceName | None = Field(
        default=None, description="GPU resource name. Defaults to the GPU resource of the stack."
    )
    gpu_product: LabelValue | None = Field(
        default=None, description="GPU model of the nodes (label nvidia.com/gpu.product)."
    )
    node_gpus: PositiveInt | None = Field(
        default=None, description="Number of GPUs per node (label nvidia.com/gpu.count)."
    )
    whole_node: bool = Field(
        default=False,
        description="Keep other workloads of this project off the nodes on which the job's pods "
        "run.",
    )
    cpu: CpuQuantity = Field(description="CPU request per pod. CPU is not limited.")
    memory: MemoryQuantity = Field(description="Memory request and limit per pod.")
    shm: MemoryQuantity | None = Field(
        default=None,
        description="Size of /dev/shm, which counts against the memory limit. null means 4Gi per "
        "GPU, but at most half of the memory.",
    )
    ephemeral_storage: DiskQuantity | None = Field(
        default=None,
        description="Ephemeral storage request and limit of each pod: /tmp (1Gi), `scratch` "
        "volumes, logs and files that containers write. If null, nothing is requested, so the "
        "pod is among the first to be evicted when the disk is full.",
    )
    launcher: LauncherSettings | None = Field(
        default=None,
        description="Resources of the MPI launcher (`mpi` kind) or the Ray head (`ray` kind).",
    )
    notebook: NotebookSettings | None = Field(
        default=None, description="JupyterLab, for the `notebook` kind (docs/notebooks.md)."
    )
    checkpoints: DnsLabel = Field(
        default="checkpoints", description="Claim for checkpoints and exports."
    )
    datasets: DnsLabel | None = Field(
        default=None, description="Claim with datasets, mounted read-only."
    )
    volumes: dict[DnsLabel, VolumeSettings] = Field(
        default={}, description="Additional volumes by name."
    )
    hyperparameters: TrainingConfig | None = Field(
        default=None,
        description="Configuration of this repository's training program. Every job except a "
        "notebook sets exactly one of `hyperparameters`, `torchtitan` and `command`.",
    )
    torchtitan: TorchtitanSettings | None = Field(
        default=None,
        description="torchtitan as the program, for large language models (docs/torchtitan.md).",
    )
    env: dict[EnvironmentName, str] = Field(
        default={}, description="Additional environment variables."
    )
    env_from: dict[EnvironmentName, ReferenceSettings] = Field(
        default={}, description="Environment variables from Secrets or ConfigMaps."
    )
    omp_threads: PositiveInt | None = Field(
        default=None, description="CPU threads per process (OMP_NUM_THREADS)."
    )
    rdma: RdmaSettings | None = Field(default=None, description="RDMA network between nodes.")
    nccl: NcclSettings | None = Field(
        default=None, description="NCCL settings for the network between nodes."
    )
    host_network: bool = Field(
        default=False,
        description="Use the node's network. RDMA needs this if pods cannot get separate adapters.",
    )
    spread: bool = Field(default=True, description="Prefer to distribute the pods over the nodes.")
    strict_spread: bool = Field(
        default=False,
        description="Require the distribution that `spread` only prefers. Without this setting, "
        "packing can outweigh the preference. With it, the gang waits for enough nodes, even if "
        "several of its pods would fit on one node.",
    )
    pack: PackingSettings | None = Field(
        default=None, description="Keep the pods within one zone, rack or similar domain."
    )
    network_topology: NetworkTopologySettings | None = Field(
        default=None,
        description="Keep the pods close to each other in the network; requires Volcano 1.12 or "
        "later.",
    )
    node_selector: Labels = Field(
        default={}, description="Additional node labels that the pods require."
    )
    tolerations: list[TolerationSettings] = Field(
        default=[],
        description="Tolerations in addition to those of the stack, for example for spot nodes.",
    )
    labels: Labels = Field(
        default={}, description='Labels of the pods, such as azure.workload.identity/use: "true".'
    )
    annotations: Annotations = Field(
        default={}, description="Annotations of the pods, for other tools (hang tracers, sidecars)."
    )
    retries: PositiveInt = Field(
        default=3, le=100, description="Maximum number of restarts before the run fails."
    )
    fatal_exit_codes: list[Annotated[int, Field(ge=1, le=255)]] = Field(
        default=[BAD_INPUT],
        max_length=20,
        description="Exit codes after which the run fails without a restart.",
    )
    success: Literal["all", "first"] | None = Field(
        default=None,
        description="Pods that must succeed: all, or only the first. The default depends on the "
        "kind.",
    )
    state: Literal["running", "suspended", "stopped"] = Field(
        default="running",
        description="`suspended` deletes the pods and keeps the run; `running` resumes it; "
        "`stopped` terminates the run permanently. Changing this setting does not start a new run.",
    )
    steps: dict[StepName, StepSettings] = Field(
        default={}, description="Steps before and after training, such as prepare and evaluate."
    )
    after: list[StepName] = Field(
        default=[], description="Steps that must succeed before training."
    )
    inputs: dict[OutputName, Reference] = Field(
        default={},
        description="Outputs of steps, each as `<step>.<output>`; training waits for them. "
        "With `command`, each replaces `$(inputs.<name>)`; otherwise, each sets the `<name>` "
        "hyperparameter.",
    )
    schedule: ScheduleSettings | None = Field(
        default=None,
        description="Start a new run of the job at each scheduled time, instead of a single run.",
    )
    deadline_seconds: PositiveInt | None = Field(
        default=None, description="Maximum duration of the run (s), including restarts."
    )
    attempt_deadline_seconds: PositiveInt | None = Field(
        default=None, description="Maximum lifetime of a pod (s). A pod that exceeds it fails."
    )
    run: DnsLabel | None = Field(
        default=None,
        description="Fixed name of the run. If it is set, changes to the job do not start a new "
        "run. If null, the name consists of the job's key and a hash of its settings.",
    )
    attempt: PositiveInt = Field(
        default=1, description="Increase to run the same specification again, as a new run."
    )
    recreate: bool = Field(
        default=False,
        description="Create the run again if an earlier update created it and it was later deleted "
        "from the cluster; training resumes from its checkpoint. By default, the update is "
        "rejected, because the run may have finished.",
    )
    grace_seconds: int = Field(
        default=60,
        ge=0,
        le=3600,
        description="Time (s) to save a checkpoint when a pod is terminated.",
    )
    on_change: Literal["keep", "replace"] = Field(
        default="keep",
        description="Effect of a change on the earlier run: `keep` leaves it in the cluster, "
        "running or finished; `replace` deletes it. Notebooks and schedules are always replaced.",
    )

    @field_validator("hyperparameters")
    @classmethod
    def _directories_are_derived(cls, config: TrainingConfig | None) -> TrainingConfig | None:
        if config is not None and (derived := DERIVED_HYPERPARAMETERS & config.model_fields_set):
            raise ValueError(
                f"sets {', '.join(sorted(derived))}, which the stack determines: remove it"
            )
        return config

    @field_validator("fatal_exit_codes")
    @classmethod
    def _codes_differ(cls, codes: list[int]) -> list[int]:
        if len(set(codes)) < len(codes):
            raise ValueError("contains a duplicate code: list each code only once")
        return codes

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := list(job_problems(self)):
            raise ValueError("; it ".join(problems))
        return self

    @property
    def shared_memory(self) -> str:
        """Size of /dev/shm: `shm`, or a default based on the GPUs and the memory of a pod."""
        return self.shm or default_shm(self.gpus_per_node, self.memory)

    @property
    def specification(self) -> dict[str, Any]:
        """Settings that the hash in a run's name covers."""
        return self.model_dump(mode="json", exclude_unset=True, exclude=NOT_IN_RUN_NAME)

    @property
    def starts_in_flow(self) -> bool:
        """True if a JobFlow starts training, because the job has steps or a schedule."""
        return bool(self.steps) or self.schedule is not None

    @property
    def expanded(self) -> Self:
        """Copy of the job with one step, `<step>-<index>`, for each value of `for_each`."""
        names = {
            name: [f"{name}-{index}" for index, _ in enumerate(step.for_each)] or [name]
            for name, step in self.steps.items()
        }

        def expanded_names(after: Sequence[str]) -> list[str]:
            return [each for name in after for each in names.get(name, [name])]

        def expanded_inputs(inputs: Mapping[str, str]) -> dict[str, str]:
            values = {}
            for key, reference in inputs.items():
                name, _, output = reference.partition(".")
                references = ",".join(f"{each}.{output}" for each in names.get(name, [name]))
                is_list = name in self.steps and self.steps[name].for_each
                values[key] = f"[{references}]" if is_list else reference
            return values

        steps = {}
        for name, step in self.steps.items():
            items = [{ITEM: item} for item in step.for_each] or [{}]
            for each, item in zip(names[name], items, strict=True):
                changes = {
                    "after": expanded_names(step.after),
                    "inputs": expanded_inputs(step.inputs),
                    "env": {**step.env, **item},
                    "for_each": [],
                }
                steps[each] = step.model_copy(update=changes)
        changes = {"after": expanded_names(self.after), "inputs": expanded_inputs(self.inputs)}
        return self.model_copy(update={**changes, "steps": steps})

    @property
    def waits_for(self) -> list[str]:
        """Steps that training waits for: `after`, and the producers of its inputs."""
        return list(dict.fromkeys([*self.after, *producers(self.inputs)]))

    @property
    def outlives_change(self) -> bool:
        """True if the run stays in the cluster when its job changes or is removed."""
        return self.on_change == "keep" and self.notebook is None and self.schedule is None

    @property
    def min_pods(self) -> int:
        """Minimum number of pods, which are scheduled together or not at all."""
        return self.min_nodes or self.nodes

    @property
    def metrics_port(self) -> int | None:
        """Port on which the program serves metrics; None if not set, or for a custom command."""
        if self.torchtitan is not None:
            return self.torchtitan.metrics_port
        return self.hyperparameters.metrics_port or None if self.hyperparameters else None

    @property
    def has_several_pods(self) -> bool:
        """True if more than one pod mounts the claims."""
        return self.nodes > 1 or KINDS[self.kind].has_launcher or bool(self.steps)

    @property
    def node_labels(self) -> dict[str, str]:
        """Node labels that the job requires in addition to the labels of all GPU nodes."""
        product = {} if self.gpu_product is None else {GPU_PRODUCT_LABEL: self.gpu_product}
        count = {} if self.node_gpus is None else {GPU_COUNT_LABEL: str(self.node_gpus)}
        return {**product, **count, **self.node_selector}
