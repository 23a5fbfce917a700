"""The stack, in the order in which it is provisioned."""

from infra.cluster import connect, options
from infra.configuration import RegistryLogin, load_settings
from infra.failure_recorder import FailureRecorder, FailureRecorderArgs
from infra.gpu_stack import GpuStack, GpuStackArgs
from infra.inference_service import InferenceService
from infra.monitoring import Monitoring, MonitoringArgs
from infra.outputs import export_outputs
from infra.serving import Serving
from infra.storage import Storage, StorageArgs
from infra.tenancy import PULL_SECRET, Tenancy, TenancyArgs
from infra.training_job import TrainingJobs
from infra.training_run import TrainingJobArgs
from infra.volcano import Volcano, VolcanoArgs
from infra.workload_image import WorkloadImage, WorkloadImageArgs

settings = load_settings()
login = RegistryLogin.of(settings.images)
cluster = connect(settings.cluster)

gpu = GpuStack("gpu", GpuStackArgs(gpu=settings.gpu), options(cluster))
volcano = Volcano(
    "volcano",
    VolcanoArgs(volcano=settings.volcano, rendering=settings.cluster.render_to is not None),
    options(cluster),
)
tenancy = Tenancy(
    "tenancy",
    TenancyArgs(
        tenancy=settings.tenancy,
        gpu_resource=settings.gpu.resource,
        inference_ports=settings.inference.ports,
        login=login,
        retain=settings.retains,
    ),
    options(cluster),
)
storage = Storage(
    "storage",
    StorageArgs(storage=settings.storage, namespace=tenancy.namespace),
    options(cluster, tenancy),
)
images = {
    key: WorkloadImage(f"image-{key}", WorkloadImageArgs.of(settings.images, key, login))
    for key in settings.images.workloads
}
if (recorder := settings.logs.recorder) is not None:
    FailureRecorder(
        "recorder",
        FailureRecorderArgs(
            recorder=recorder,
            namespace=tenancy.namespace,
            image=images[recorder.image].reference,
            claims=storage.claims,
            gpu_nodes=gpu.nodes,
            isolated=settings.tenancy.network.isolate,
            pull_secret=PULL_SECRET if login else None,
        ),
        options(cluster, tenancy, storage),
    )
training = TrainingJobs(
    "training",
    [
        TrainingJobArgs(
            key=key,
            job=job,
            namespace=tenancy.namespace,
            image=images[job.image].reference,
            image_identity=images[job.image].identity,
            gpu_nodes=gpu.nodes,
            claims=storage.claims,
        )
        for key, job in settings.training.jobs.items()
    ],
    options(cluster, gpu, volcano, storage),
)
services = {
    key: InferenceService(
        f"inference-{key}",
        Serving(
            key=key,
            service=service,
            run=training.runs[service.job].name if service.job else service.run,
            namespace=tenancy.namespace,
            domain=settings.cluster.domain,
            image=images[service.image].reference,
            canary_image=images[service.canary_image].reference,
            gpu_nodes=gpu.nodes,
            claims=storage.claims,
        ),
        options(cluster, gpu, storage),
    )
    for key, service in settings.inference.services.items()
}
if settings.monitoring.prometheus != "none":
    Monitoring(
        "monitoring",
        MonitoringArgs(
            monitoring=settings.monitoring,
            namespace=tenancy.namespace,
            volcano_namespace=settings.volcano.namespace,
            gpu_nodes=gpu.nodes,
            ports=settings.metrics_ports,
            isolated=settings.tenancy.network.isolate,
            rendering=settings.cluster.render_to is not None,
        ),
        options(cluster, tenancy),
    )
export_outputs(gpu, tenancy, volcano, storage, images, training.runs, services)
