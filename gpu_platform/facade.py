"""Public names of `gpu_platform` for other Pulumi programs."""

from gpu_platform.platform_stack import Platform, PlatformError
from gpu_platform.readable import ArgumentError
from infra.cluster import connect
from infra.configuration import RegistryLogin
from infra.failure_recorder import FailureRecorder, FailureRecorderArgs
from infra.gpu_stack import GpuStack, GpuStackArgs
from infra.inference_service import InferenceService
from infra.monitoring import Monitoring, MonitoringArgs
from infra.node_health import NodeHealth, NodeHealthArgs
from infra.outputs import (
    GpuNodesOutput,
    InferenceOutput,
    PlatformOutputs,
    RunOutput,
    gpu_nodes_output,
)
from infra.pods import GpuNodes
from infra.serving.description import InferenceServiceArgs
from infra.settings.cluster import (
    ClusterSettings,
    GpuSettings,
    RuntimeClassSettings,
    TolerationSettings,
)
from infra.settings.images import BuildSettings, ImageSettings
from infra.settings.inference.service import InferenceServiceSettings
from infra.settings.monitoring import MonitoringSettings, RecorderSettings
from infra.settings.node_health import NodeHealthSettings
from infra.settings.storage import (
    ClaimSettings,
    LocalSource,
    NfsSource,
    StorageClassSettings,
    StorageSettings,
    VolumeSettings,
)
from infra.settings.tenancy import QuotaSettings, TenancySettings
from infra.settings.training.job import TrainingJobSettings
from infra.settings.volcano import PriorityClassSettings, QueueSettings, VolcanoSettings
from infra.storage import Storage, StorageArgs
from infra.tenancy import Tenancy, TenancyArgs
from infra.training_job import TrainingJob, TrainingJobs
from infra.training_run import TrainingJobArgs
from infra.volcano import Volcano, VolcanoArgs
from infra.workload_image import WorkloadImage, WorkloadImageArgs
from training.config import TrainingConfig

__all__ = [
    "ArgumentError",
    "BuildSettings",
    "ClaimSettings",
    "ClusterSettings",
    "FailureRecorder",
    "FailureRecorderArgs",
    "GpuNodes",
    "GpuNodesOutput",
    "GpuSettings",
    "GpuStack",
    "GpuStackArgs",
    "ImageSettings",
    "InferenceOutput",
    "InferenceService",
    "InferenceServiceArgs",
    "InferenceServiceSettings",
    "LocalSource",
    "Monitoring",
    "MonitoringArgs",
    "MonitoringSettings",
    "NfsSource",
    "NodeHealth",
    "NodeHealthArgs",
    "NodeHealthSettings",
    "Platform",
    "PlatformError",
    "PlatformOutputs",
    "PriorityClassSettings",
    "QueueSettings",
    "QuotaSettings",
    "RecorderSettings",
    "RegistryLogin",
    "RunOutput",
    "RuntimeClassSettings",
    "Storage",
    "StorageArgs",
    "StorageClassSettings",
    "StorageSettings",
    "Tenancy",
    "TenancyArgs",
    "TenancySettings",
    "TolerationSettings",
    "TrainingConfig",
    "TrainingJob",
    "TrainingJobArgs",
    "TrainingJobSettings",
    "TrainingJobs",
    "Volcano",
    "VolcanoArgs",
    "VolcanoSettings",
    "VolumeSettings",
    "WorkloadImage",
    "WorkloadImageArgs",
    "connect",
    "gpu_nodes_output",
]
