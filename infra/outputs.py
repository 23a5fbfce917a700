"""What other stacks and tools can read from this one."""

from collections.abc import Mapping

import pulumi

from infra.inference_service import InferenceService
from infra.storage import Storage
from infra.tenancy import Tenancy
from infra.training_job import TrainingJob
from infra.volcano import Volcano
from infra.workload_image import WorkloadImage


def export_outputs(
    tenancy: Tenancy,
    volcano: Volcano,
    storage: Storage,
    images: Mapping[str, WorkloadImage],
    jobs: Mapping[str, TrainingJob],
    services: Mapping[str, InferenceService],
) -> None:
    """Export namespace, queues, claims, images, runs and inference addresses."""
    pulumi.export("namespace", tenancy.namespace)
    pulumi.export("queues", volcano.queues)
    pulumi.export("claims", storage.claims)
    pulumi.export("images", {key: image.reference for key, image in images.items()})
    pulumi.export("runs", {key: job.summary for key, job in jobs.items()})
    pulumi.export("inference", {key: service.summary for key, service in services.items()})
