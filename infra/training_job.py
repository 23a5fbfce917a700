"""One run of a training job: named by what it is, left alone by edits."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pulumi

from infra.backends import BACKENDS
from infra.backends.gang import Gang
from infra.component import Component
from infra.manifests import Manifest, compact
from infra.output_types import RunOutput
from infra.pods import GpuNodes
from infra.settings.jobs.placement import NetworkTopologySettings
from infra.settings.training import TrainingJobSettings
from infra.training_pods import Surroundings, leader_pod, steps, training_pod
from kube.kinds import KINDS

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


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that was created, and what is told of it."""

    name: str
    summary: RunOutput


class TrainingJob(Component):
    """Creates the run that the job's specification describes, and never waits for its end."""

    run: str
    summary: RunOutput

    def __init__(
        self, name: str, args: TrainingJobArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("TrainingJob", name, opts)
        created = create_run(self, args)
        self.run, self.summary = created.name, created.summary
        self.register_outputs({"run": self.summary})


class TrainingJobs(Component):
    """The same for many jobs as one component.

    A state in files or in a bucket is written anew at each step, and a component costs three
    steps beside the two of each object; docs/scale.md has the figures.
    """

    runs: dict[str, Run]

    def __init__(
        self,
        name: str,
        jobs: Sequence[TrainingJobArgs],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("TrainingJobs", name, opts)
        self.runs = {args.key: create_run(self, args) for args in jobs}
        self.register_outputs({})


def create_run(component: Component, args: TrainingJobArgs) -> Run:
    """Create the objects of the job's run as children of a component."""
    run = run_name(args)
    keep = args.job.on_change == "keep"
    suspendable = "suspend" in KINDS[args.job.kind].capabilities
    earlier: list[pulumi.Resource] = []
    for manifest in manifests(args, run, args.image):
        ignored = left_alone(manifest, suspendable=suspendable)
        options = component.options(after=earlier, retain=keep, ignore=ignored)
        resource_name = f"{run}-{manifest['kind'].lower()}"
        if manifest["metadata"]["name"] != run:
            resource_name += f"-{manifest['metadata']['name']}"
        earlier = [*earlier, component.create(resource_name, manifest, options)]
    return Run(
        name=run,
        summary={
            "name": run,
            "kind": args.job.kind,
            "namespace": args.namespace,
            "queue": args.job.queue,
            "nodes": args.job.nodes,
            "gpusPerNode": args.job.gpus_per_node,
        },
    )


def run_name(args: TrainingJobArgs) -> str:
    """`<key>-<8 digits>`: the digits are a hash of all objects of the run.

    The image enters by its identity, since its digest is unknown before it is built.
    """
    # A run that is suspended is the same run.
    running = replace(args, job=args.job.model_copy(update={"suspend": False}))
    specification = manifests(running, _NAMELESS, args.image_identity)
    canonical = json.dumps(specification, sort_keys=True, separators=(",", ":"))
    if args.job.attempt > 1:
        canonical += f" attempt {args.job.attempt}"
    return f"{args.key}-{hashlib.sha256(canonical.encode()).hexdigest()[:8]}"


def manifests(args: TrainingJobArgs, run: str, image: pulumi.Input[str]) -> list[Manifest]:
    """The objects of the run, in the order of creation."""
    job = args.job
    around = Surroundings(
        key=args.key,
        run=run,
        image=image,
        gpu_nodes=args.gpu_nodes,
        claims=args.claims,
        service_account=args.service_account,
    )
    pod = training_pod(job, around)
    topology = job.network_topology
    gang = Gang(
        name=run,
        namespace=args.namespace,
        queue=job.queue,
        nodes=job.nodes,
        min_nodes=job.min_nodes,
        processes=job.gpus_per_node,
        pod=pod,
        own_command=job.command is not None,
        leader=leader_pod(job, pod),
        retries=job.retries,
        fatal_exit_codes=tuple(job.fatal_exit_codes),
        success=job.success,
        suspend=job.suspend,
        priority_class=job.priority_class,
        deadline_seconds=job.deadline_seconds,
        ttl_seconds=job.ttl_seconds,
        network_topology=_topology(topology) if topology else {},
        steps=steps(job, around, pod),
        after=job.after,
    )
    return BACKENDS[job.kind](gang)


def _topology(topology: NetworkTopologySettings) -> Manifest:
    return compact({"mode": topology.mode, "highestTierAllowed": topology.highest_tier})


def left_alone(manifest: Manifest, *, suspendable: bool) -> list[str]:
    """Paths of what an update never touches: all but what may change while a run goes on.

    The name is the hash of the specification, so the specification of an object with this name
    never changes: what looks like a change is a rebuilt image.
    """
    if not suspendable:
        return ["spec"]
    paths: list[str] = []
    for key, value in manifest.get("spec", {}).items():
        if key == "runPolicy":
            paths += [f"spec.{key}.{inner}" for inner in value if inner != "suspend"]
        elif key != "suspend":
            paths.append(f"spec.{key}")
    return paths
