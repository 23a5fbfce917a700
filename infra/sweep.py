"""Objects for hyperparameter sweeps: the trials, and the program that controls the sweeps."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from infra.api_client import ApiClient
from infra.manifests import Manifest, with_metadata
from infra.pods import GpuNodes, Mount, Pod, Volume
from infra.settings.training.sweep import (
    CONTROLLER,
    Parameters,
    SweepControllerSettings,
    SweepSettings,
    template_name,
)
from infra.training_run import TrainingJobArgs, manifests, run_name
from kube.kinds.volcano import COMMAND, JOB, TEMPLATE
from kube.names import (
    SCHEDULING_GROUP,
    SWEEP_GPU_HOURS_ANNOTATION,
    SWEEP_MONEY_ANNOTATION,
    SWEEP_PARALLEL_ANNOTATION,
    SWEEP_SHARE_ANNOTATION,
    SWEEP_TRIALS_ANNOTATION,
)

PLAN: Final = "plan.json"
PLAN_PATH: Final = "/plan"
CLAIMS_PATH: Final = "/claims"


@dataclass(frozen=True, kw_only=True)
class Price:
    """Price per GPU-hour of a trial, including charges for its CPUs and memory."""

    gpu_hour: float
    currency: str


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep. `args` are the arguments for its trials, without the varied hyperparameters.

    `price` is set only if the budget limits the cost.
    """

    settings: SweepSettings
    args: TrainingJobArgs
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    """Labels and annotations that the stack adds to every object."""
    price: Price | None = None

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that the budget permits, limited by both `gpu_hours` and `money`."""
        budget = self.settings.budget
        limits = [] if budget.gpu_hours is None else [budget.gpu_hours]
        if budget.money is not None and self.price is not None and self.price.gpu_hour:
            limits.append(budget.money / self.price.gpu_hour)
        return min(limits)

    def run(self, parameters: Parameters) -> str:
        """Return the name of the trial with these hyperparameters."""
        return run_name(self._trial(parameters))

    def manifest(self, parameters: Parameters) -> Manifest:
        """Return the job of a trial: the object that an entry in `training.jobs` would create."""
        trial = self._trial(parameters)
        (built,) = manifests(trial, run_name(trial), trial.image)
        return with_metadata(built, self.labels, self.annotations)

    def _trial(self, parameters: Parameters) -> TrainingJobArgs:
        return replace(self.args, job=self.settings.trial(parameters))


def template(sweep: Sweep) -> Manifest:
    """Return the JobTemplate for the trials. Creating it does not start a trial.

    Policies and the preview's report use the template to count the resources of all trials that run
    at the same time.
    """
    args, settings = sweep.args, sweep.settings
    template_args = replace(args, job=settings.trial(next(settings.extremes())))
    name = template_name(args.key)
    (job,) = manifests(template_args, name, template_args.image)
    limits = {
        SWEEP_PARALLEL_ANNOTATION: str(settings.parallel),
        SWEEP_TRIALS_ANNOTATION: str(settings.trials),
        SWEEP_GPU_HOURS_ANNOTATION: f"{sweep.gpu_hours:.15g}",
        SWEEP_SHARE_ANNOTATION: f"{settings.expected_share:.2f}",
    }
    if settings.budget.money is not None:
        limits[SWEEP_MONEY_ANNOTATION] = f"{settings.budget.money:.15g}"
    metadata = {**job["metadata"], "annotations": {**job["metadata"]["annotations"], **limits}}
    return {**job, "apiVersion": TEMPLATE.api_version, "kind": TEMPLATE.kind, "metadata": metadata}


def winner_path(sweep: Sweep) -> str:
    """Return the path of the symbolic link to the winning run, relative to the checkpoint claim.

    Any change to the search or its limits yields a new path. The target of a link therefore never
    changes, and all pods of a service load the same model.
    """
    settings = sweep.settings.model_dump(mode="json", exclude={"job", "parallel", "winner"})
    search = json.dumps([sweep.run({}), sweep.gpu_hours, settings], sort_keys=True)
    digits = hashlib.sha256(search.encode()).hexdigest()[:8]
    return f"{template_name(sweep.args.key)}/winner-{digits}"


def plan(sweeps: Mapping[str, Sweep]) -> dict[str, Any]:
    """Return the plan that the controller reads: everything that the trials depend on.

    Values may be Pulumi outputs.
    """
    return {
        key: {
            "settings": sweep.settings.model_dump(mode="json", exclude_unset=True, by_alias=True),
            "namespace": sweep.args.namespace,
            "image": sweep.args.image,
            "image_identity": sweep.args.image_identity,
            "gpu_nodes": vars(sweep.args.gpu_nodes),
            "claims": dict(sweep.args.claims),
            "service_account": sweep.args.service_account,
            "labels": dict(sweep.labels),
            "annotations": dict(sweep.annotations),
            "price": None if sweep.price is None else vars(sweep.price),
        }
        for key, sweep in sweeps.items()
    }


def parse_plan(text: str) -> dict[str, Sweep]:
    """Return the sweeps of a plan.

    Raise ValueError if a different version of this program wrote an incompatible plan.
    """
    try:
        return dict(_parse_sweeps(json.loads(text)))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _parse_sweeps(documents: Mapping[str, Any]) -> Iterator[tuple[str, Sweep]]:
    for key, document in documents.items():
        settings = SweepSettings.model_validate(document.pop("settings"))
        labels, annotations = document.pop("labels"), document.pop("annotations")
        gpu_nodes = GpuNodes(**document.pop("gpu_nodes"))
        price = document.pop("price")
        args = TrainingJobArgs(key=key, job=settings.job, gpu_nodes=gpu_nodes, **document)
        sweep = Sweep(
            settings=settings,
            args=args,
            labels=labels,
            annotations=annotations,
            price=None if price is None else Price(**price),
        )
        yield key, sweep


@dataclass(frozen=True, kw_only=True)
class SweepControllerArgs:
    """The sweeps of a stack, and the settings of their controller's pod.

    `plan` is the result of the `plan` function as JSON. The plan and the image may be Pulumi
    outputs.
    """

    controller: SweepControllerSettings
    sweeps: Mapping[str, Sweep]
    plan: Any
    namespace: str
    image: Any
    claims: Mapping[str, str]
    gpu_nodes: GpuNodes
    isolated: bool = False
    pull_secret: str | None = None


def controller_manifests(args: SweepControllerArgs) -> list[Manifest]:
    """Return the controller's objects in the order of creation."""
    client = ApiClient(name=CONTROLLER, namespace=args.namespace)
    return [
        client.account(args.pull_secret),
        client.role(_rules(args)),
        client.binding(),
        *([client.allow_ports(args.controller.api_ports)] if args.isolated else []),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": client.metadata,
            "data": {PLAN: args.plan},
        },
        # Only one pod may control the trials; a second one would wait for a lock on the claim.
        client.deployment(_pod(client, args), {"type": "Recreate"}),
    ]


def _rules(args: SweepControllerArgs) -> list[dict[str, Any]]:
    templates = sorted(template_name(key) for key in args.sweeps)
    return [
        {"apiGroups": [JOB.group], "resources": [JOB.plural], "verbs": ["list", "create"]},
        {"apiGroups": [SCHEDULING_GROUP], "resources": ["podgroups"], "verbs": ["list"]},
        {"apiGroups": [COMMAND.group], "resources": [COMMAND.plural], "verbs": ["create"]},
        {
            "apiGroups": [TEMPLATE.group],
            "resources": [TEMPLATE.plural],
            "resourceNames": templates,
            "verbs": ["patch"],
        },
    ]


def _pod(client: ApiClient, args: SweepControllerArgs) -> Pod:
    settings = args.controller
    keys = sorted({sweep.settings.job.checkpoints for sweep in args.sweeps.values()})
    source = {"configMap": {"name": CONTROLLER}}
    return client.pod(
        "controller",
        args.gpu_nodes,
        image=args.image,
        cpu=settings.cpu,
        memory=settings.memory,
        command=[
            *("python3", "-m", "sweeps", f"--plan={PLAN_PATH}/{PLAN}"),
            f"--claims={CLAIMS_PATH}",
            f"--interval={settings.interval_seconds}",
        ],
        mounts=[
            Mount(name=f"claim-{number}", claim=args.claims[key], path=f"{CLAIMS_PATH}/{key}")
            for number, key in enumerate(keys)
        ],
        volumes=[Volume(name="plan", source=source, path=PLAN_PATH, read_only=True)],
        node_selector=settings.node_selector,
    )
