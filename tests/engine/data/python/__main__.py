"""A job and its queue, using only the installed package."""

import pulumi

from gpu_platform import (
    GpuNodes,
    Platform,
    QueueSettings,
    TrainingConfig,
    TrainingJob,
    TrainingJobSettings,
    Volcano,
    VolcanoArgs,
    VolcanoSettings,
)

IMAGE = f"registry.example.com/team/training@sha256:{'0123456789abcdef' * 4}"

volcano = Volcano(
    "volcano",
    VolcanoArgs(volcano=VolcanoSettings(install=False, queues={"vision": QueueSettings()})),
)
platform = Platform(
    namespace="vision",
    claims={"checkpoints": "shared-checkpoints"},
    gpu_nodes=GpuNodes(resource="nvidia.com/gpu"),
    queues=volcano.queues,
    images={"training": IMAGE},
)
job = TrainingJobSettings(
    queue="vision",
    nodes=2,
    gpus_per_node=4,
    cpu="8",
    memory="64Gi",
    hyperparameters=TrainingConfig(model="digits-net", dataset="digits", epochs=3),
)
digits = TrainingJob(
    "digits",
    platform.training_job("digits", job, image=platform.images["training"]),
    pulumi.ResourceOptions(depends_on=[volcano]),
)
pulumi.export("run", digits.summary)
