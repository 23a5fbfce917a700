"""Components of the Pulumi plugin, for programs in any language.

Arguments may be outputs of other resources. A component creates its resources when all arguments
are known.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypedDict, TypeVar

import pulumi
from pulumi.errors import InputPropertiesError

from gpu_platform.platform_stack import Platform, pinning_problems
from gpu_platform.plugin import schema
from gpu_platform.plugin.checking import invalid_properties, unsupported, validate, with_integers
from gpu_platform.plugin.gpu_nodes import AdditionalSettings, GpuNodesSettings
from infra import (
    failure_recorder,
    gpu_stack,
    inference_service,
    monitoring,
    node_health,
    storage,
    tenancy,
    training_job,
    volcano,
)
from infra.component import Component
from infra.pods import GpuNodes
from infra.settings.cluster import GpuSettings
from infra.settings.inference import InferenceSettings
from infra.settings.monitoring import MonitoringSettings, RecorderSettings
from infra.settings.node_health import NodeHealthSettings
from infra.settings.storage import StorageSettings
from infra.settings.tenancy import TenancySettings
from infra.settings.training import TrainingSettings
from infra.settings.volcano import VolcanoSettings
from kube.accelerators import NVIDIA_GPU

Values = dict[str, Any]
Built = TypeVar("Built")

_PLACEMENT = ("platform", "namespace", "claims", "gpu_nodes")


class Arguments(TypedDict):
    """Arguments of a component. The plugin's schema lists their names and types."""


class Deferred(Component):
    """A component that creates its resources when its arguments are known."""

    def when_known(
        self, args: Any, build: Callable[[Values], Awaitable[Built]]
    ) -> pulumi.Output[Built]:
        """Call `build` when the arguments are known, and return its result.

        The resources that `build` creates depend on the resources from which the arguments come.
        """
        known = pulumi.Output.from_input(args)

        async def create(values: Values) -> Built:
            self.wait_for(await known.resources())
            _check_additional(type(self).__name__, values)
            try:
                return await build(values)
            except pulumi.RunError as error:
                # Pulumi would also print the class name of this error.
                raise InputPropertiesError(str(error), []) from None

        # Output.apply accepts coroutine functions, although its annotation does not.
        built: pulumi.Output[Built] = known.apply(create)
        return built

    def register_after(self, built: pulumi.Output[None]) -> None:
        """Register this component, which has no outputs in the schema, once `built` is known."""
        self.register_outputs({"made": built})


class TrainingJob(Deferred):
    """A run of a training job, scheduled as a gang. The component does not wait for the run."""

    run: pulumi.Output[str]
    """Name of the run and of its directory on the claim: `<name of resource>-<8 hex digits>`."""
    namespace: pulumi.Output[str]
    """Namespace of the run's pods."""
    summary: pulumi.Output[Values]
    """Summary of the run, to be exported as a stack output."""

    def __init__(
        self, name: str, args: Arguments, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("TrainingJob", name, opts)

        async def build(values: Values) -> training_job.Run:
            image, account = values.pop("image"), values.pop("service_account", "training")
            platform = await _platform(name, _pop(values, _PLACEMENT), self)
            job = validate(TrainingSettings, values, "jobs", name).jobs[name]
            unsupported(platform.problems_of_job(job, image))
            arguments = platform.training_job(name, job, image=image, service_account=account)
            return training_job.create_run(self, arguments)

        built = self.when_known(args, build)
        self.run = built.apply(lambda run: run.name)
        self.namespace = built.apply(lambda run: run.summary["namespace"])
        self.summary = built.apply(lambda run: dict(run.summary))
        self.register_outputs(
            {"run": self.run, "namespace": self.namespace, "summary": self.summary}
        )


class InferenceService(Deferred):
    """A model served over HTTP. Its pods become ready once the model exists."""

    url: pulumi.Output[str]
    """URL for clients in the cluster."""
    summary: pulumi.Output[Values]
    """Summary of the service, to be exported as a stack output."""

    def __init__(
        self, name: str, args: Arguments, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("InferenceService", name, opts)

        async def build(values: Values) -> inference_service.InferenceService:
            image, account = values.pop("image"), values.pop("service_account", "inference")
            domain = values.pop("domain", "cluster.local")
            canary_image = values.pop("canary_image", None)
            if canary_image is not None and "canary" in values:
                # Any value works: it only marks that the canary has its own image.
                values["canary"] = {**values["canary"], "image": "canary"}
            platform = await _platform(name, _pop(values, _PLACEMENT), self)
            (service,) = validate(InferenceSettings, values, "services", name).services.values()
            unsupported(platform.problems_of_service(service, image, canary_image))
            arguments = platform.inference_service(
                name,
                service,
                image=image,
                canary_image=canary_image,
                domain=domain,
                service_account=account,
            )
            return inference_service.InferenceService(name, arguments, self.options())

        built = self.when_known(args, build)
        self.url = built.apply(lambda service: service.url)
        self.summary = built.apply(lambda service: dict(service.summary))
        self.register_outputs({"url": self.url, "summary": self.summary})


class GpuStack(Deferred):
    """NVIDIA's device plugin and the runtime class, for clusters without them."""

    gpu_nodes: pulumi.Output[Values]
    """GPU resource and nodes of the cluster, for the `gpuNodes` argument of jobs and services."""

    def __init__(
        self, name: str, args: Arguments, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("GpuStack", name, opts)

        async def build(values: Values) -> Values:
            settings = validate(GpuSettings, values)
            built = gpu_stack.GpuStack(name, gpu_stack.GpuStackArgs(gpu=settings), self.options())
            return GpuNodesSettings.of(built.gpu_nodes).output

        self.gpu_nodes = self.when_known(args, build)
        self.register_outputs({"gpuNodes": self.gpu_nodes})


class Volcano(Deferred):
    """The batch scheduler, its queues and priority classes."""

    queues: pulumi.Output[list[str]]
    """Names of the leaf queues, which accept jobs. Unknown until all queues exist."""

    def __init__(
        self, name: str, args: Arguments, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("Volcano", name, opts)

        async def build(values: Values) -> volcano.Volcano:
            settings = validate(VolcanoSettings, values)
            return volcano.Volcano(name, volcano.VolcanoArgs(volcano=settings), self.options())

        # In a preview, Volcano's webhooks would reject runs whose queues do not exist yet.
        self.queues = self.when_known(args, build).apply(
            lambda built: pulumi.Output.all(
                *(queue.id for queue in built.queue_objects.values())
            ).apply(lambda _: built.queues)
        )
        self.register_outputs({"queues": self.queues})


class Tenancy(Deferred):
    """A namespace for workloads: quota, limits, network policies and service accounts."""

    namespace: pulumi.Output[str]
    """Name of the namespace."""

    def __init__(
        self, name: str, args: Arguments, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("Tenancy", name, opts)

        async def build(values: Values) -> str:
            resource = values.pop("gpu_resource", NVIDIA_GPU)
            settings = validate(TenancySettings, values)
            built = tenancy.TenancyArgs(tenancy=settings, gpu_resource=resource)
            return tenancy.Tenancy(name, built, self.options()).namespace

        self.namespace = self.when_known(args, build)
        self.register_outputs({"namespace": self.namespace})


class Storage(Deferred):
    """Storage classes, existing volumes, and claims for data sets and checkpoints."""

    claims: pulumi.Output[dict[str, str]]
    """Maps logical names of claims to their names in the cluster."""

    def __init__(
        self, name: str, args: Arguments, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("Storage", name, opts)

        async def build(values: Values) -> dict[str, str]:
            namespace = values.pop("namespace")
            settings = validate(StorageSettings, values)
            built = storage.StorageArgs(storage=settings, namespace=namespace)
            return storage.Storage(name, built, self.options()).claims

        self.claims = self.when_known(args, build)
        self.register_outputs({"claims": self.claims})


class FailureRecorder(Deferred):
    """A pod that archives the last log lines and events of failed pods next to the checkpoints."""

    def __init__(
        self, name: str, args: Arguments, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("FailureRecorder", name, opts)

        async def build(values: Values) -> None:
            values, arguments = _split_pod_arguments(values)
            settings = validate(RecorderSettings, values)
            built = failure_recorder.FailureRecorderArgs(
                recorder=settings, claims={name: name for name in settings.claims}, **arguments
            )
            failure_recorder.FailureRecorder(name, built, self.options())

        self.register_after(self.when_known(args, build))


class NodeHealth(Deferred):
    """A controller that cordons nodes with unhealthy GPUs and moves their runs to other nodes."""

    def __init__(
        self, name: str, args: Arguments, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("NodeHealth", name, opts)

        async def build(values: Values) -> None:
            runs_namespace, controller = values.pop("runs_namespace"), _pop(values, ("namespace",))
            values, arguments = _split_pod_arguments({**values, "namespace": runs_namespace})
            built = node_health.NodeHealthArgs(
                health=validate(NodeHealthSettings, {**values, **controller}), **arguments
            )
            node_health.NodeHealth(name, built, self.options())

        self.register_after(self.when_known(args, build))


class Monitoring(Deferred):
    """Scraping, rules, alerts, dashboards and NVIDIA's DCGM exporter."""

    def __init__(
        self, name: str, args: Arguments, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("Monitoring", name, opts)

        async def build(values: Values) -> None:
            arguments = {
                "namespace": values.pop("namespace"),
                "volcano_namespace": values.pop("volcano_namespace", "volcano-system"),
                "ports": tuple(with_integers(values.pop("ports", []))),
                "isolated": values.pop("isolated", True),
                "gpu_nodes": _gpu_nodes(values),
            }
            built = monitoring.MonitoringArgs(
                monitoring=validate(MonitoringSettings, values), **arguments
            )
            monitoring.Monitoring(name, built, self.options())

        self.register_after(self.when_known(args, build))


COMPONENTS: tuple[type[Deferred], ...] = (
    GpuStack,
    Volcano,
    Tenancy,
    Storage,
    TrainingJob,
    InferenceService,
    FailureRecorder,
    NodeHealth,
    Monitoring,
)


def _check_additional(component: str, values: Values) -> None:
    """Raise InputPropertiesError if any argument other than the settings of a stack is invalid."""
    settings, additional = schema.COMPONENTS[component]
    names = AdditionalSettings.model_fields.keys() & additional.keys() - settings.model_fields
    validate(AdditionalSettings, {name: values[name] for name in names if name in values})


def _pop(values: Values, keys: tuple[str, ...]) -> Values:
    return {key: values.pop(key) for key in keys if key in values}


async def _platform(name: str, values: Values, parent: Deferred) -> Platform:
    """Return the platform for a workload. Arguments override outputs of the platform's stack."""
    nodes = _gpu_nodes(values) if "gpu_nodes" in values else None
    if "platform" in values:
        # The component's provider may lack permission to read kube-system.
        options = pulumi.ResourceOptions(parent=parent)
        stack = await Platform.read(values["platform"], options, name=name, check_cluster=False)
        return Platform(
            namespace=values.get("namespace", stack.namespace),
            claims=values.get("claims", stack.claims),
            gpu_nodes=nodes or stack.gpu_nodes,
            queues=stack.queues,
            images=stack.images,
        )
    if missing := [key for key in ("namespace", "claims") if key not in values]:
        raise invalid_properties((key, "is missing: set it, or set platform") for key in missing)
    return Platform(
        namespace=values["namespace"],
        claims=values["claims"],
        gpu_nodes=nodes or GpuNodes(resource=NVIDIA_GPU),
        images={},
    )


def _gpu_nodes(values: Values) -> GpuNodes:
    nodes = values.pop("gpu_nodes", None)
    given = {} if nodes is None else {"gpu_nodes": nodes}
    return validate(AdditionalSettings, given).gpu_nodes.nodes


def _split_pod_arguments(values: Values) -> tuple[Values, Values]:
    """Split values into the settings of a program and the arguments of the program's pod."""
    settings = dict(values)
    arguments = {
        "namespace": settings.pop("namespace"),
        "image": settings.pop("image"),
        "isolated": settings.pop("isolated", True),
        "gpu_nodes": _gpu_nodes(settings),
    }
    unsupported(pinning_problems(arguments["image"]))
    return settings, arguments
