"""A team's stack with many runs on another stack's platform."""

import pulumi

from gpu_platform import ClusterSettings, Platform, TrainingJobs, TrainingJobSettings, connect

config = pulumi.Config()


async def main() -> pulumi.Inputs:
    """Read the platform's stack and create a run for each job in the configuration."""
    cluster = connect(ClusterSettings(**config.require_object("cluster")))
    platform = await Platform.read(config.require("platform"), provider=cluster)
    jobs = [
        platform.training_job(key, TrainingJobSettings(**job), image=platform.images["training"])
        for key, job in config.require_object("jobs").items()
    ]
    training = TrainingJobs("training", jobs, pulumi.ResourceOptions(providers=[cluster]))
    return {"runs": {key: run.summary for key, run in training.runs.items()}}


pulumi.run(main)
