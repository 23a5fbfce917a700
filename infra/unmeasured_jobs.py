"""A word about jobs of which Prometheus would hear nothing."""

from collections.abc import Mapping

import pulumi

from infra.settings.training import TrainingJobSettings


def warn_of_unmeasured(jobs: Mapping[str, TrainingJobSettings]) -> None:
    """Warn, in the preview as well, of jobs that could answer Prometheus and do not."""
    found = [key for key, job in jobs.items() if _could_answer(job)]
    if found:
        pulumi.log.warn(
            f"Prometheus hears nothing of training.jobs: {', '.join(found)}. Nobody is told when "
            "they stand still, lose their loss, save nothing or fill /dev/shm, and they have no "
            "goodput: write metrics_port, 9400 for example, into their hyperparameters "
            "(docs/monitoring.md)."
        )


def _could_answer(job: TrainingJobSettings) -> bool:
    # A command of one's own and the TensorFlow program know no such setting.
    if job.hyperparameters is None or job.kind == "tensorflow":
        return False
    return not job.hyperparameters.metrics_port
