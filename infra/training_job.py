"""Components that create the runs of training jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pulumi

from infra.component import Component
from infra.manifests import Manifest
from infra.outputs import RunOutput
from infra.training_run import TrainingJobArgs, manifests, run_name
from kube.kinds import KINDS


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that was created, and its part of the stack's outputs."""

    name: str
    summary: RunOutput


class TrainingJob(Component):
    """A run of a training job. The component never waits until the run ends."""

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
    """Runs of many training jobs in one component.

    A file or bucket backend rewrites the whole state at each step, and a component costs three
    steps in addition to two per object; docs/scale.md has the measurements.
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
    suspendable = "state: suspended" in KINDS[args.job.kind].capabilities
    earlier: list[pulumi.Resource] = []
    for manifest in manifests(args, run, args.image):
        ignored = ignored_paths(manifest, suspendable=suspendable)
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


def ignored_paths(manifest: Manifest, *, suspendable: bool) -> list[str]:
    """Return the paths that an update leaves alone: the specification except `suspend`.

    A run keeps the specification that it was created with: its name is a hash of the job's
    settings, so any difference comes from a rebuilt image, shared settings or a new release.
    """
    if not suspendable:
        return ["spec"]
    paths: list[str] = []
    for key, value in manifest.get("spec", {}).items():
        if key == "runPolicy":
            paths += [f"spec.{key}.{inner}" for inner in value if inner != "suspend"]
        elif key == "template":
            paths += _TEMPLATE
        elif key != "suspend":
            paths.append(f"spec.{key}")
    return paths


_TEMPLATE: Final = (
    "spec.template.spec",
    "spec.template.metadata.annotations",
    "spec.template.metadata.labels[*]",
)
"""Paths of a Job's pod template. The provider applies an ignored path as it is in the cluster, but
skips a wildcard. It would apply the labels `controller-uid` and `job-name` of the API server, and
the next update would remove them by replacing the Job."""
