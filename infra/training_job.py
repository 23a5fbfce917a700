"""Components that create the runs of training jobs."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pulumi

from infra.component import Component, before_create, existing
from infra.manifests import Manifest
from infra.outputs import RunOutput, SharedResources
from infra.settings import StackSettings
from infra.settings.training.schedule import ScheduleSettings
from infra.training_run import TrainingJobArgs, manifests, run_name
from infra.volcano import Volcano
from kube.kinds import KINDS, RESOURCES, TRAIN_JOB
from kube.names import BATCH_GROUP, RUN_LABEL, SCHEDULING_GROUP


@dataclass(frozen=True, kw_only=True)
class Run:
    """A created run, and its entry in the stack outputs."""

    name: str
    summary: RunOutput
    started: pulumi.Output[str]
    """Name of the run, resolved when the object that starts it exists."""


class TrainingJob(Component):
    """A run of a training job. The component does not wait for the run to end."""

    run: str
    """Name of the run and of its directory on the checkpoint claim (see `run_name`)."""
    namespace: pulumi.Input[str]
    """Namespace of the run's pods."""
    summary: RunOutput
    """The run's entry in the `runs` stack output."""

    def __init__(
        self, name: str, args: TrainingJobArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("TrainingJob", name, opts)
        created = create_run(self, args)
        self.run, self.summary = created.name, created.summary
        self.namespace = self.summary["namespace"]
        self.register_outputs({"run": self.summary})


class TrainingJobs(Component):
    """Runs of many training jobs in one component.

    A component for each run would slow down large stacks: a file or bucket backend rewrites the
    whole state at each step of an update. An update takes two steps for each object, and three more
    for each component (docs/scale.md).

    `recorded` contains the names of the runs whose jobs were found or created by the last update.
    If an update would create one of these jobs again, the job has been deleted from the cluster.
    The update is then rejected, unless the job sets `recreate`.
    """

    runs: dict[str, Run]
    """Runs by the keys of their jobs."""
    names: dict[str, str]
    """Names of the runs by the keys of their jobs."""
    started: pulumi.Input[Sequence[pulumi.Input[str]]]
    """Names of the started runs, which the next update must not start again."""

    def __init__(
        self,
        name: str,
        jobs: Sequence[TrainingJobArgs],
        opts: pulumi.ResourceOptions | None = None,
        recorded: pulumi.Output[Collection[str]] | None = None,
    ) -> None:
        super().__init__("TrainingJobs", name, opts)
        start_options = pulumi.ResourceOptions()
        if recorded is not None:
            start_options = before_create(f"{name}-once", reject_recorded(recorded))
        created = {args.key: create_run(self, args, start_options) for args in jobs}
        # The runs of a schedule are not resources of the stack.
        self.runs = {args.key: created[args.key] for args in jobs if args.job.schedule is None}
        self.names = {key: run.name for key, run in self.runs.items()}
        self.started = started_runs([*self.runs.values()], recorded)
        self.register_outputs({})


def training_jobs(settings: StackSettings, shared: SharedResources) -> list[TrainingJobArgs]:
    """Return the arguments for all jobs of a stack."""
    isolated = settings.tenancy.network.isolate
    return [
        TrainingJobArgs.of(key, job, shared, isolated=isolated)
        for key, job in settings.training.jobs.items()
    ]


def create_run(
    component: Component, args: TrainingJobArgs, start_options: pulumi.ResourceOptions | None = None
) -> Run:
    """Create the objects of the job's run as children of a component.

    `start_options` apply to the object that starts the run, unless the job sets `recreate`.
    """
    run = run_name(args)
    suspendable = "state: suspended" in KINDS[args.job.kind].capabilities
    earlier: list[pulumi.CustomResource] = []
    started_ids: list[pulumi.Output[str]] = []
    if args.job.schedule is not None:
        pulumi.log.info(f"{args.key}: {_next_start(args.job.schedule)}", component)
    queues = [volcano.queue_objects for volcano in component.dependencies(Volcano)]
    queue = [each[args.job.queue] for each in queues if args.job.queue in each]
    for manifest in manifests(args, run, args.image):
        has_run_name = manifest["metadata"]["labels"].get(RUN_LABEL) == run
        ignored = ignored_paths(manifest, suspendable=suspendable) if has_run_name else []
        options = component.options(after=earlier, retain=args.job.outlives_change, ignore=ignored)
        starts = (manifest["apiVersion"], manifest["kind"]) in _STARTING_KINDS
        if starts and not args.job.recreate:
            options = pulumi.ResourceOptions.merge(options, start_options)
        # The objects of a schedule keep their names when the specification changes.
        resource_name = f"{run if has_run_name else args.key}-{manifest['kind'].lower()}"
        if manifest["metadata"]["name"] != run:
            resource_name += f"-{manifest['metadata']['name']}"
        # In a preview, Volcano's webhooks would reject objects in a queue that does not exist yet,
        # and Trainer's webhook would reject a TrainJob whose TrainingRuntime does not exist yet.
        in_queue = manifest["apiVersion"].startswith(_VOLCANO_GROUPS)
        references = earlier if manifest["kind"] == TRAIN_JOB.kind else queue if in_queue else []
        created = component.create(resource_name, manifest, options, references=references)
        earlier = [*earlier, created]
        started_ids += [earlier[-1].id] if starts else []
    return Run(
        name=run,
        started=pulumi.Output.all(*started_ids).apply(lambda _: run),
        summary={
            "name": run,
            "kind": args.job.kind,
            "namespace": args.namespace,
            "queue": args.job.queue,
            "nodes": args.job.nodes,
            "gpusPerNode": args.job.gpus_per_node,
        },
    )


def started_runs(
    runs: Sequence[Run], recorded: pulumi.Output[Collection[str]] | None
) -> pulumi.Input[Sequence[pulumi.Input[str]]]:
    """Return the names of the runs whose jobs exist.

    An update with `--target` skips the jobs that are not targets. Their runs are included if they
    are recorded.
    """
    if pulumi.runtime.is_dry_run():
        return [run.started for run in runs]
    found = existing({run.name: run.started for run in runs})
    return pulumi.Output.all(found, recorded).apply(
        lambda both: [run.name for run in runs if run.name in {*both[0], *(both[1] or ())}]
    )


def _next_start(schedule: ScheduleSettings) -> str:
    """Return a message with the time of the next run of a schedule."""
    if schedule.suspend:
        return "the schedule is suspended"
    return f"the next run starts at {schedule.next_start(datetime.now(UTC)):%Y-%m-%d %H:%M %Z}"


_STARTING_KINDS: Final = {(resource.api_version, resource.kind) for resource in RESOURCES}
"""Kinds of the objects whose creation starts a run."""


_VOLCANO_GROUPS: Final = (f"{BATCH_GROUP}/", f"{SCHEDULING_GROUP}/")
"""API groups of the objects whose queue Volcano's webhooks validate."""


def reject_recorded(
    recorded: pulumi.Output[Collection[str]],
) -> Callable[[pulumi.ResourceHookArgs], Awaitable[None]]:
    """Return a hook that raises RunError if a recorded run would be created again.

    An update finds existing jobs in the stack's state. If a job was deleted from the cluster, for
    example after it finished, a refresh removes it from the state, and the next update would run it
    again. `pulumi destroy --target` removes a retained job only from the state.
    """

    async def reject(created: pulumi.ResourceHookArgs) -> None:
        run = (created.new_inputs or {})["metadata"]["name"]
        if run in (await recorded.future() or ()):
            raise pulumi.RunError(
                f"The run {run} would start again: its job is missing from the cluster or the "
                "state, or the job sets `run` and its kind or steps have changed. If the run has "
                "finished, remove the job from gpu-platform:training.jobs; to adopt a job that is "
                "still in the cluster, set `recreate: true`; to resume the run from its "
                "checkpoint, set `recreate: true` once its previous job has ended; to start a new "
                "run, increase `attempt` or, if `run` is set, change `run`."
            )

    return reject


def ignored_paths(manifest: Manifest, *, suspendable: bool) -> list[str]:
    """Return the paths that an update ignores: the specification except `suspend`.

    A run keeps the specification with which it was created. If a setting of the job changes, the
    hash in the run's name changes too, so the update creates a new run. Other differences come from
    a rebuilt image, a shared setting or a new release, and are ignored. A job that sets the name of
    its run (`run`) keeps its run after any change.
    """
    if not suspendable:
        return ["spec"]
    paths: list[str] = []
    for key, value in manifest.get("spec", {}).items():
        if key == "runPolicy":
            paths += [f"spec.{key}.{inner}" for inner in value if inner != "suspend"]
        elif key == "template":
            paths += _TEMPLATE_PATHS
        elif key != "suspend":
            paths.append(f"spec.{key}")
    return paths


_TEMPLATE_PATHS: Final = (
    "spec.template.spec",
    "spec.template.metadata.annotations",
    "spec.template.metadata.labels[*]",
)
"""Ignored paths of a Job's pod template.

At an ignored path without a wildcard, the provider applies the value that it read from the cluster.
It would then own the `controller-uid` and `job-name` labels, which the API server adds. The next
update would remove these labels and therefore replace the Job. The wildcard prevents this.
"""
