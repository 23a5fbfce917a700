"""Queues, storage and a run on a cluster that already has Volcano and NVIDIA's device plugin."""

import pulumi

from gpu_platform import (
    ClaimSettings,
    GpuSettings,
    GpuStack,
    GpuStackArgs,
    LocalSource,
    Platform,
    QueueSettings,
    Storage,
    StorageArgs,
    StorageSettings,
    Tenancy,
    TenancyArgs,
    TenancySettings,
    TolerationSettings,
    TrainingConfig,
    TrainingJob,
    TrainingJobSettings,
    Volcano,
    VolcanoArgs,
    VolcanoSettings,
    VolumeSettings,
)

config = pulumi.Config()
image = config.require("image")

# The device plugin is already installed: the `existing` provider creates nothing and only describes
# how pods request GPUs.
gpu = GpuStack(
    "gpu",
    GpuStackArgs(
        gpu=GpuSettings(
            provider="existing",
            node_selector={"nvidia.com/gpu.present": "true"},
            tolerations=[
                TolerationSettings(key="nvidia.com/gpu"),
                TolerationSettings(key="kwok.x-k8s.io/node", operator="Equal", value="fake"),
            ],
        )
    ),
)
volcano = Volcano(
    "volcano",
    VolcanoArgs(volcano=VolcanoSettings(install=False, queues={"language": QueueSettings()})),
)
tenancy = Tenancy(
    "tenancy",
    TenancyArgs(tenancy=TenancySettings(namespace="language"), gpu_resource=gpu.gpu_nodes.resource),
)
shared = LocalSource(path="/mnt/shared/language", nodes={"nvidia.com/gpu.present": ["true"]})
storage = Storage(
    "storage",
    StorageArgs(
        storage=StorageSettings(
            volumes={
                "language": VolumeSettings(
                    capacity="5Gi", access_modes=["ReadWriteMany"], local=shared
                )
            },
            claims={"checkpoints": ClaimSettings(size="5Gi", volume="language")},
        ),
        namespace=tenancy.namespace,
    ),
    pulumi.ResourceOptions(depends_on=[tenancy]),
)
platform = Platform(
    namespace=tenancy.namespace,
    claims=storage.claims,
    gpu_nodes=gpu.gpu_nodes,
    queues=volcano.queues,
    images={"training": image},
)
job = TrainingJobSettings(
    queue="language",
    nodes=2,
    gpus_per_node=4,
    cpu="8",
    memory="64Gi",
    hyperparameters=TrainingConfig(model="digits-net", dataset="digits", epochs=20),
)
digits = TrainingJob(
    "digits",
    platform.training_job("digits", job, image=image),
    pulumi.ResourceOptions(depends_on=[gpu, volcano, storage]),
)
pulumi.export("run", digits.summary)
