"""One run of a training job: named by what it is, left alone by edits."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi

from infra.backends import BACKENDS
from infra.backends.gang import Gang
from infra.component import Component
from infra.manifests import (
    RUN_LABEL,
    WORKLOAD_LABEL,
    Manifest,
    standard_labels,
)
from infra.pods import GpuNodes, Mount, Pod, Rdma, even_spread
from infra.settings.training import TrainingJobSettings

CHECKPOINTS_PATH = "/checkpoints"
DATASETS_PATH = "/data"
_NAMELESS = "run"


@dataclass(frozen=True, kw_only=True)
class TrainingJobArgs:
    """A job and its surroundings.

    `image` may be unknown in a preview; `image_identity` is known and says what is in it.
    `claims` maps logical names to names in the cluster.
    """

    key: str
    job: TrainingJobSettings
    namespace: str
    image: pulumi.Input[str]
    image_identity: str
    gpu_nodes: GpuNodes
    claims: Mapping[str, str]
    service_account: str = "training"


class TrainingJob(Component):
    """Creates the run that the job's specification describes, and never waits for its end."""

    run: str
    summary: dict[str, Any]

    def __init__(
        self, name: str, args: TrainingJobArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("TrainingJob", name, opts)
        self.run = run_name(args)
        keep = args.job.on_change == "keep"
        earlier: list[pulumi.Resource] = []
        for manifest in manifests(args, self.run, args.image):
            # The name is the hash of the specification, so the specification of an object with
            # this name never changes: what looks like a change is a rebuilt image.
            options = self.options(after=earlier, retain=keep, ignore=["spec"])
            resource_name = f"{self.run}-{manifest['kind'].lower()}"
            earlier = [*earlier, self.create(resource_name, manifest, options)]
        self.summary = {
            "name": self.run,
            "kind": args.job.kind,
            "namespace": args.namespace,
            "queue": args.job.queue,
            "nodes": args.job.nodes,
            "gpusPerNode": args.job.gpus_per_node,
        }
        self.register_outputs({"run": self.summary})


def run_name(args: TrainingJobArgs) -> str:
    """`<key>-<8 digits>`: the digits are a hash of all objects of the run.

    The image enters by its identity, since its digest is unknown before it is built.
    """
    specification = manifests(args, _NAMELESS, args.image_identity)
    canonical = json.dumps(specification, sort_keys=True, separators=(",", ":"))
    if args.job.attempt > 1:
        canonical += f" attempt {args.job.attempt}"
    return f"{args.key}-{hashlib.sha256(canonical.encode()).hexdigest()[:8]}"


def manifests(args: TrainingJobArgs, run: str, image: pulumi.Input[str]) -> list[Manifest]:
    """The objects of the run, in the order of creation."""
    job = args.job
    gang = Gang(
        name=run,
        namespace=args.namespace,
        queue=job.queue,
        nodes=job.nodes,
        processes=job.gpus_per_node,
        pod=_pod(args, run, image),
        retries=job.retries,
        priority_class=job.priority_class,
        deadline_seconds=job.deadline_seconds,
        ttl_seconds=job.ttl_seconds,
    )
    return BACKENDS[job.kind](gang)


def _pod(args: TrainingJobArgs, run: str, image: pulumi.Input[str]) -> Pod:
    job = args.job
    config = job.hyperparameters.model_copy(update={"run_dir": f"{CHECKPOINTS_PATH}/{run}"})
    env = {"RUN_NAME": run}
    if job.omp_threads is not None:
        env["OMP_NUM_THREADS"] = str(job.omp_threads)
    return Pod(
        container="training",
        image=image,
        command=["-m", "training", *config.to_args()],
        cpu=job.cpu,
        memory=job.memory,
        shm=job.shm,
        gpus=job.gpus_per_node,
        gpu_nodes=_gpu_nodes(args),
        service_account=args.service_account,
        grace_seconds=job.grace_seconds,
        labels={
            **standard_labels(args.key, run),
            WORKLOAD_LABEL: "training",
            RUN_LABEL: run,
        },
        env={**env, **job.env},
        mounts=_mounts(args),
        rdma=Rdma(**job.rdma.model_dump()) if job.rdma else None,
        node_selector=job.node_selector,
        spread=even_spread({RUN_LABEL: run}, strict=True) if job.spread and job.nodes > 1 else (),
        deadline_seconds=job.attempt_deadline_seconds,
    )


def _gpu_nodes(args: TrainingJobArgs) -> GpuNodes:
    nodes = args.gpu_nodes
    return GpuNodes(
        resource=args.job.gpu_resource or nodes.resource,
        node_selector=nodes.node_selector,
        tolerations=nodes.tolerations,
        runtime_class=nodes.runtime_class,
    )


def _mounts(args: TrainingJobArgs) -> list[Mount]:
    mounts = [
        Mount(name="checkpoints", claim=args.claims[args.job.checkpoints], path=CHECKPOINTS_PATH)
    ]
    if args.job.datasets is not None:
        claim = args.claims[args.job.datasets]
        mounts.append(Mount(name="datasets", claim=claim, path=DATASETS_PATH, read_only=True))
    return mounts
