"""A team's stack with one training run on another stack's platform."""

import pulumi

from gpu_platform import Platform, TrainingConfig, TrainingJob, TrainingJobSettings

config = pulumi.Config()


async def main() -> pulumi.Inputs:
    """Read the platform's stack and create the run."""
    platform = await Platform.read(config.require("platform"))
    job = TrainingJobSettings(
        queue=config.require("queue"),
        checkpoints="checkpoints",
        nodes=2,
        gpus_per_node=8,
        cpu="16",
        memory="128Gi",
        hyperparameters=TrainingConfig(model="digits-net", dataset="digits", epochs=20),
    )
    args = platform.training_job("digits", job, image=platform.images["training"])
    return {"run": TrainingJob("digits", args).summary}


pulumi.run(main)
