"""The Pulumi program: it reads the settings, creates the components, and exports the outputs."""

import pulumi

from gitops.sweep_prices import stack_prices
from infra.cluster import STARTED_RUNS, Target
from infra.component import existing
from infra.configuration import RegistryLogin, load_settings
from infra.failure_recorder import FailureRecorder, FailureRecorderArgs
from infra.gpu_stack import GpuStack, GpuStackArgs
from infra.inference_service import InferenceService
from infra.manifests import PULL_SECRET
from infra.monitoring import Monitoring, MonitoringArgs
from infra.node_health import NodeHealth, NodeHealthArgs
from infra.outputs import SharedResources
from infra.serving.description import InferenceServiceArgs
from infra.storage import Storage, StorageArgs
from infra.sweep_controller import SweepController, sweep_args, sweeps
from infra.team_access import PlatformDescription, PlatformDescriptionArgs
from infra.tenancy import Tenancy, TenancyArgs
from infra.training_job import TrainingJobs, training_jobs
from infra.volcano import Volcano, VolcanoArgs
from infra.workload_image import WorkloadImage, WorkloadImageArgs

settings = load_settings()
prices = stack_prices(settings)
login = RegistryLogin.of(settings.images)
cluster = Target.of(settings.cluster, settings.tenancy.namespace)
depends_on = cluster.options

gpu = GpuStack("gpu", GpuStackArgs.of(settings, login), depends_on())
volcano = Volcano("volcano", VolcanoArgs.of(settings, login), depends_on())
tenancy = Tenancy("tenancy", TenancyArgs.of(settings, login), depends_on())
storage = Storage("storage", StorageArgs.of(settings), depends_on(tenancy))
images = {
    key: WorkloadImage(f"image-{key}", WorkloadImageArgs.of(settings.images, key, login))
    for key in settings.images.workloads
}
shared = SharedResources(
    namespace=tenancy.namespace,
    queues=volcano.queues,
    claims=storage.claims,
    gpu_nodes=gpu.gpu_nodes,
    images={key: image.reference for key, image in images.items()},
    identities={key: image.identity for key, image in images.items()},
    pull_secret=PULL_SECRET if login else None,
)
if settings.logs.recorder is not None:
    FailureRecorder(
        "recorder", FailureRecorderArgs.of(settings, shared), depends_on(tenancy, storage)
    )
if settings.gpu.node_health is not None:
    NodeHealth("node-health", NodeHealthArgs.of(settings, shared, login), depends_on(gpu, tenancy))

jobs = training_jobs(settings, shared)
training = TrainingJobs("training", jobs, depends_on(gpu, volcano, storage), recorded=cluster.runs)
stack_sweeps = sweeps(settings, shared, prices)
if stack_sweeps:
    SweepController(
        "sweeps", sweep_args(settings, stack_sweeps, shared), depends_on(gpu, volcano, storage)
    )

services = {
    key: InferenceService(
        f"inference-{key}",
        InferenceServiceArgs.of(settings, key, training.names, stack_sweeps, shared),
        depends_on(gpu, storage),
    )
    for key in settings.inference.services
}
if settings.monitoring.prometheus != "none":
    Monitoring("monitoring", MonitoringArgs.of(settings, gpu.gpu_nodes, login), depends_on(tenancy))
if settings.tenancy.groups.members:
    PlatformDescription(
        "platform", PlatformDescriptionArgs.of(settings, shared), depends_on(tenancy)
    )

for name, value in (shared.outputs | {"images": existing(shared.images)}).items():
    pulumi.export(name, value)
pulumi.export("runs", {key: run.summary for key, run in training.runs.items()})
pulumi.export(STARTED_RUNS, training.started)
pulumi.export("inference", {key: service.summary for key, service in services.items()})
