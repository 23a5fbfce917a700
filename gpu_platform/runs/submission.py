"""Runs built from a job file, identical to those that the platform's stack would create."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from gitops.demand import Demand, demands, with_gpus
from gitops.errors import GitopsError
from gitops.preview.new_runs import run_rows
from gitops.preview.report import RunRow
from gitops.prices import Prices
from gitops.stack_file import Dumper, parse
from gpu_platform.platform_stack import (
    Platform,
    PlatformError,
    problems_of_job_key,
    raise_if_any,
    unavailable,
)
from gpu_platform.runs.findings import findings
from infra.manifests import DESCRIPTION, DESCRIPTION_KEY, Manifest, with_metadata
from infra.settings.problems import describe, full_key
from infra.settings.training import TrainingSettings
from infra.settings.training.job import TrainingJobSettings
from infra.training_run import manifests, run_name
from policies.evaluation import Finding, resource_of
from policies.views import View


class Description(BaseModel):
    """Platform description that the platform's stack writes to the namespace of the workloads."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    stack: str
    outputs: dict[str, Any]
    identities: dict[str, str]
    priority_classes: list[str] | None = None
    """Priority classes that jobs may use. None if an earlier version wrote the description."""
    labels: dict[str, str]
    annotations: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a description.

        Raise GitopsError if it is not JSON, or if another gpu_platform version wrote it.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            if error.errors(include_url=False)[0]["type"] == "json_invalid":
                raise GitopsError(
                    f"the description of the platform is not JSON: copy the value of "
                    f"{DESCRIPTION_KEY} in the {DESCRIPTION} ConfigMap to the --platform file"
                ) from None
            raise GitopsError(
                "the description of the platform was written by a different version of "
                f"gpu_platform (missing or invalid fields: {error.error_count()}): update the "
                "stack, or use the version that the stack uses"
            ) from None

    @property
    def platform(self) -> Platform:
        """The platform on which the runs are placed. Raise GitopsError if it is not usable."""
        try:
            return Platform.of(self.stack, {"runs": {}, "inference": {}, **self.outputs})
        except PlatformError as error:
            raise GitopsError(str(error)) from None


@dataclass(frozen=True)
class Submission:
    """A run and its objects, which are created in the order of `manifests`."""

    key: str
    name: str
    job: TrainingJobSettings
    manifests: Sequence[Manifest]


_SECTION: Final = full_key("training")


def read_jobs(file: Path) -> dict[str, TrainingJobSettings]:
    """Return the jobs in a file by key. Their settings are those of `training.jobs`.

    Raises:
        GitopsError: If the file cannot be read or is not valid. The message lists every problem.
    """
    try:
        values = parse(file.read_text("utf-8"))
    except OSError as error:
        raise GitopsError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise GitopsError(f"{file} cannot be read: {error}") from None
    if not (isinstance(values, dict) and values):
        raise GitopsError(f"{file} contains no jobs: write a mapping from keys to jobs")
    config = values.get("config")
    if _SECTION in (config if isinstance(config, dict) else values):
        raise GitopsError(
            f"{file} contains the section {_SECTION}: write only the jobs below `jobs`"
        )
    try:
        # Sort the keys as Pulumi does, because the order of variables and volumes is significant.
        values = json.loads(json.dumps(values, sort_keys=True))
        return TrainingSettings.model_validate({"jobs": values}).jobs
    except ValidationError as error:
        problems = describe(error, TrainingSettings, "training")
        raise GitopsError(
            "\n".join([f"{file} is not valid:", *(f"  - {p}" for p in problems)])
        ) from None


def submissions(
    jobs: Mapping[str, TrainingJobSettings], description: Description
) -> list[Submission]:
    """Return the run of each job.

    Raises:
        GitopsError: If the platform does not support a job. The message lists every problem.
    """
    platform = description.platform
    found, errors = [], []
    for key, job in jobs.items():
        try:
            found.append(_submission(key, job, description, platform))
        except PlatformError as error:
            errors.append(str(error))
    if errors:
        raise GitopsError("\n".join(errors))
    return found


def _submission(
    key: str, job: TrainingJobSettings, description: Description, platform: Platform
) -> Submission:
    problems = []
    known = platform.images.keys() & description.identities.keys()
    if job.image not in known:
        problems.append(unavailable("image", job.image, "images", known))
    classes = description.priority_classes
    if job.priority_class is not None and classes is not None and job.priority_class not in classes:
        problem = unavailable("priority_class", job.priority_class, "priority classes", classes)
        problems.append(problem)
    others = platform.problems_of_job(job, platform.images.get(job.image))
    raise_if_any(key, [*problems_of_job_key(key, job), *problems, *others])
    image, identity = platform.images[job.image], description.identities[job.image]
    args = platform.training_job(key, job, image=image, image_identity=identity)
    name = run_name(args)
    objects = [
        with_metadata(each, description.labels, description.annotations)
        for each in manifests(args, name, image)
    ]
    return Submission(key, name, job, objects)


def violations(
    submission: Submission, platform: Platform, settings: Mapping[str, Any]
) -> list[Finding]:
    """Return the policy findings for a run, assuming that the platform's objects exist.

    Raises:
        GitopsError: If `settings`, the configuration of the policy pack, is not valid.
    """
    queues = platform.queues or ()
    return findings(submission.name, submission.manifests, platform.namespace, queues, settings)


def costs(submission: Submission, prices: Prices, stack: str) -> list[RunRow]:
    """Return rows with GPUs and cost: one for the run, or one for each of its steps with GPUs."""
    views = [View(resource_of(dict(each))) for each in submission.manifests]
    demanded: list[Demand] = list(with_gpus(demands(views)))
    return run_rows(demanded, prices, stack)


def stack_configuration(jobs: Mapping[str, TrainingJobSettings]) -> str:
    """Return the stack configuration that creates the same runs."""
    configuration = {
        key: job.model_dump(mode="json", exclude_unset=True, by_alias=True)
        for key, job in jobs.items()
    }
    stack = {"config": {"gpu-platform:training": {"jobs": configuration}}}
    return yaml.dump(stack, Dumper=Dumper, sort_keys=False)
