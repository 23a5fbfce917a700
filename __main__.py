"""The stack: settings, components in the order of creation, outputs."""

import pulumi

from infra.cluster import STARTED_RUNS, Target
from infra.configuration import RegistryLogin, load_settings
from infra.failure_recorder import FailureRecorder, FailureRecorderArgs
from infra.gpu_stack import GpuStack, GpuStackArgs
from infra.inference_service import InferenceService
from infra.monitoring import Monitoring, MonitoringArgs
from infra.node_health import NodeHealth, NodeHealthArgs
from infra.outputs import gpu_nodes_output
from infra.platform_description import PlatformDescription, PlatformDescriptionArgs
from infra.serving.description import InferenceServiceArgs
from infra.settings import SettingsError, StackSettings
from infra.settings.training.job import TrainingJobSettings
from infra.storage import Storage, StorageArgs
from infra.sweep import Price, winner_path
from infra.sweep_controller import SweepController, controller_args, sweeps
from infra.tenancy import Tenancy, TenancyArgs
from infra.training_job import TrainingJobs
from infra.training_run import TrainingJobArgs
from infra.volcano import Volcano, VolcanoArgs
from infra.workload_image import WorkloadImage, WorkloadImageArgs


def load_prices(settings: StackSettings) -> dict[str, Price]:
    """Return the prices of the sweeps whose budget has money."""
    if all(sweep.budget.money is None for sweep in settings.training.sweeps.values()):
        return {}
    from gitops.errors import GitopsError
    from gitops.sweep_prices import sweep_prices

    try:
        return sweep_prices(settings, pulumi.get_stack())
    except (GitopsError, SettingsError) as error:
        raise pulumi.RunError(str(error)) from None


settings = load_settings()
prices = load_prices(settings)
login = RegistryLogin.of(settings.images)
cluster = Target.of(settings.cluster)

gpu = GpuStack("gpu", GpuStackArgs.of(settings, login), cluster.options())
volcano = Volcano("volcano", VolcanoArgs.of(settings, login), cluster.options())
tenancy = Tenancy("tenancy", TenancyArgs.of(settings, login), cluster.options())
storage = Storage("storage", StorageArgs.of(settings), cluster.options(tenancy))
images = {
    key: WorkloadImage(f"image-{key}", WorkloadImageArgs.of(settings.images, key, login))
    for key in settings.images.workloads
}
references = {key: image.reference for key, image in images.items()}
if settings.logs.recorder is not None:
    FailureRecorder(
        "recorder",
        FailureRecorderArgs.of(settings, references, gpu.gpu_nodes, storage.claims, login),
        cluster.options(tenancy, storage),
    )
if settings.gpu.node_health is not None:
    NodeHealth(
        "node-health",
        NodeHealthArgs.of(settings, references, gpu.gpu_nodes, login),
        cluster.options(gpu, tenancy),
    )


def job_args(key: str, job: TrainingJobSettings) -> TrainingJobArgs:
    """Return a job with what its pods need."""
    return TrainingJobArgs(
        key=key,
        job=job,
        namespace=tenancy.namespace,
        image=images[job.image].reference,
        image_identity=images[job.image].identity,
        gpu_nodes=gpu.gpu_nodes,
        claims=storage.claims,
    )


training = TrainingJobs(
    "training",
    [job_args(key, job) for key, job in settings.training.jobs.items()],
    cluster.options(gpu, volcano, storage),
    recorded=cluster.runs,
)
searched = sweeps(
    settings,
    {key: job_args(key, sweep.job) for key, sweep in settings.training.sweeps.items()},
    prices,
)
if searched:
    SweepController(
        "sweeps",
        controller_args(settings, searched, references, gpu.gpu_nodes, storage.claims, login),
        cluster.options(gpu, volcano, storage),
    )
runs = {key: run.name for key, run in training.runs.items()}
winners = {key: winner_path(sweep) for key, sweep in searched.items()}
services = {
    key: InferenceService(
        f"inference-{key}",
        InferenceServiceArgs.of(
            settings, key, runs, references, gpu.gpu_nodes, storage.claims, winners
        ),
        cluster.options(gpu, storage),
    )
    for key in settings.inference.services
}
if settings.monitoring.prometheus != "none":
    Monitoring(
        "monitoring", MonitoringArgs.of(settings, gpu.gpu_nodes, login), cluster.options(tenancy)
    )

platform = {
    "namespace": tenancy.namespace,
    "queues": volcano.queues,
    "claims": storage.claims,
    "gpuNodes": gpu_nodes_output(gpu.gpu_nodes),
    "images": references,
}
if settings.tenancy.groups.members:
    PlatformDescription(
        "platform",
        PlatformDescriptionArgs(
            namespace=tenancy.namespace,
            outputs=platform,
            identities={key: image.identity for key, image in images.items()},
            labels=settings.cluster.labels,
            annotations=settings.cluster.annotations,
        ),
        cluster.options(tenancy),
    )

for name, value in platform.items():
    pulumi.export(name, value)
pulumi.export("runs", {key: run.summary for key, run in training.runs.items()})
pulumi.export(STARTED_RUNS, [run.started for run in training.runs.values()])
pulumi.export("inference", {key: service.summary for key, service in services.items()})
