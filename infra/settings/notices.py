"""What can be deployed but is mostly not meant: warnings of the preview, which never fail."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from infra.settings import StackSettings
from infra.settings.problems import full_key, job_key
from infra.settings.training import TrainingJobSettings
from kube.kinds import KINDS
from kube.kinds.record import TRAINING_PROGRAM

MOST_JOBS: Final = 100
"""Jobs of one stack. With a state in files or a bucket each step of an update writes the whole
state anew, so that the time for a job grows with the number of jobs (docs/scale.md)."""

_EFA: Final = "vpc.amazonaws.com/"
"""Devices that NCCL reaches through a plugin, which `nccl.network` would keep it from."""


def notices(settings: StackSettings) -> Iterator[str]:
    """A sentence for each thing that is allowed and had better be otherwise."""
    yield from _many_jobs(settings)
    yield from _network_left_open(settings)
    yield from _image_without_the_program(settings)
    yield from _priorities_without_preemption(settings)
    yield from _unmeasured(settings)


def _many_jobs(settings: StackSettings) -> Iterator[str]:
    jobs = len(settings.training.jobs)
    if jobs > MOST_JOBS:
        yield (
            f"{full_key('training', 'jobs')} has {jobs} jobs. Updates of more than {MOST_JOBS} "
            "become slow, because with a state in files or in a bucket every step writes the whole "
            "state: give each team a stack of its own (docs/scale.md), or keep the state in Pulumi "
            "Cloud."
        )


def _network_left_open(settings: StackSettings) -> Iterator[str]:
    for key, job in settings.training.jobs.items():
        if job.rdma is None or job.nccl is not None or job.rdma.resource.startswith(_EFA):
            continue
        if "NCCL_NET" not in {*job.env, *job.env_from}:
            yield (
                f"{job_key(key, 'rdma')} is written, but no {job_key(key, 'nccl')}: where NCCL "
                "finds no such device it takes TCP without a word. Write nccl.network infiniband "
                "or roce, with which it fails instead (docs/rdma.md)."
            )


def _image_without_the_program(settings: StackSettings) -> Iterator[str]:
    for key, job in settings.training.jobs.items():
        needed = KINDS[job.kind].image_needs
        if needed is not None and "image" not in job.model_fields_set:
            yield (
                f"{job_key(key, 'kind')} is {job.kind!r}, which needs {needed} in the image, and "
                f"the default image {job.image!r} has it only if you have put it there: write "
                f"{job_key(key, 'image')} (docs/jobs.md)."
            )


def _priorities_without_preemption(settings: StackSettings) -> Iterator[str]:
    scheduler = settings.volcano.configured
    # Who has written `preempt: none` has decided.
    if scheduler is None or "preempt" in scheduler.model_fields_set:
        return
    serving = {service.priority_class for service in settings.inference.services.values()}
    classes = settings.volcano.priority_classes
    of_jobs = sorted(classes.keys() - serving, key=lambda name: classes[name].value)
    for low, high in pairwise(of_jobs):
        urgent = classes[high]
        if urgent.value > classes[low].value and urgent.preemption != "Never":
            yield (
                f"{full_key('volcano', 'scheduler', 'preempt')} is none unless it is written, so "
                f"jobs of class {high!r} go before those of {low!r} while both wait, but push out "
                "none that runs. Write surplus or gangs, or none if that is meant (docs/queues.md)."
            )
            return


def _unmeasured(settings: StackSettings) -> Iterator[str]:
    if settings.monitoring.prometheus == "none":
        return
    if found := [key for key, job in settings.training.jobs.items() if _could_answer(job)]:
        yield (
            f"Prometheus hears nothing of training.jobs: {', '.join(found)}. Nobody is told when "
            "they stand still, lose their loss, save nothing or fill /dev/shm, and they have no "
            "goodput: write metrics_port, 9400 for example, into their hyperparameters "
            "(docs/monitoring.md)."
        )


def _could_answer(job: TrainingJobSettings) -> bool:
    # A custom command and the TensorFlow program have no such setting.
    if job.hyperparameters is None or KINDS[job.kind].program != TRAINING_PROGRAM:
        return False
    return not job.hyperparameters.metrics_port
