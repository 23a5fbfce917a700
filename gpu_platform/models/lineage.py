"""Lineage of a model: the run that trained it, the code and the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gitops.errors import GitopsError
from gpu_platform.runs.findings import findings
from infra.manifests import Manifest as Object
from kube.kinds import KINDS
from kube.names import RUN_LABEL
from policies.catalogue import RULES
from policies.evaluation import resource_of
from policies.views import View
from workload.configuration import first_problem
from workload.manifest import Manifest

FILE: Final = "lineage.json"
_CONTAINERS: Final = frozenset(name for kind in KINDS.values() for name in kind.containers)


class Verdict(BaseModel):
    """Result of checking the objects of a run with the policy pack."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    passed: bool = Field(description="True if no mandatory rule is violated.")
    rules: int = Field(ge=0, description="Number of rules in the policy pack.")
    refused: tuple[str, ...] = Field(default=(), description="Violated mandatory rules.")
    advice: tuple[str, ...] = Field(default=(), description="Violated advisory rules.")


class Lineage(BaseModel):
    """Origin of a published model, stored in a signed file of the artifact."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    model: str = Field(description="Repository without its registry, such as models/digits.")
    run: str = Field(description="Name of the training run.")
    specification: str = Field(
        description="Last part of the run's name: a hash of the job's specification."
    )
    code: str = Field(description="Image of the training program, with its digest.")
    code_version: str = Field(description="Version of the training program.")
    dataset: str = Field(description="Name of the data set.")
    data_sha256: str = Field(description="Digest of the samples.")
    metrics: dict[str, float] = Field(description="Metrics on held-out data.")
    settings: dict[str, str | int | float] = Field(
        description="Settings that determine the training result."
    )
    policies: Verdict | None = None

    def missing(self) -> Iterator[str]:
        """Yield a sentence for each reason why the lineage does not permit promotion."""
        if not self.specification or not self.run.endswith(f"-{self.specification}"):
            yield "run is not named <job>-<8 hex digits>, so its specification is unknown"
        if "@sha256:" not in self.code:
            yield f"code is {self.code or 'unknown'}: an image with its digest is required"
        if not self.data_sha256:
            yield "data_sha256 is empty: an earlier version of the program wrote the export"
        if not self.metrics:
            yield "metrics are empty"
        if self.policies is None:
            yield "policies were not evaluated"
        elif not self.policies.passed:
            yield f"policies reject the run: {', '.join(self.policies.refused)}"

    def contradictions(self, manifest: Manifest) -> Iterator[str]:
        """Yield a sentence for each value that the manifest of the export contradicts."""
        for name, value in _export_fields(manifest).items():
            if getattr(self, name) != value:
                yield f"{name} is {getattr(self, name)!r}, but the export states {value!r}"


def build_lineage(
    model: str, manifest: Manifest, objects: Sequence[Object], settings: Mapping[str, Any]
) -> Lineage:
    """Return the lineage of an export.

    Args:
        model: Repository of the model without its registry.
        manifest: Manifest of the export.
        objects: Kubernetes objects of the run.
        settings: Configuration of the policy pack.

    Raises:
        GitopsError: If the objects belong to a different run.
    """
    resources = [resource_of(dict(each)) for each in objects]
    views = [View(resource) for resource in resources]
    runs = {text for resource in resources if (text := resource.labels[RUN_LABEL].text)}
    names = {resource.name for resource in resources}
    if objects and manifest.run not in runs | names:
        raise GitopsError(
            f"the export belongs to run {manifest.run!r}, but the objects belong to "
            f"{', '.join(sorted(runs or names))}: use the export and the objects of the same run"
        )
    return Lineage(
        model=model,
        specification=_specification(manifest.run),
        code=_image(views),
        policies=_verdict(manifest.run, objects, views, settings) if objects else None,
        **_export_fields(manifest),
    )


def parse(text: bytes, location: str) -> Lineage:
    """Parse the lineage. Raise GitopsError if it is not valid."""
    try:
        return Lineage.model_validate_json(text)
    except ValidationError as error:
        problem = first_problem(error, "the document")
        raise GitopsError(f"{location} is not a valid lineage: {problem}") from None


def _export_fields(manifest: Manifest) -> dict[str, Any]:
    return {
        "run": manifest.run,
        "code_version": manifest.code_version,
        "dataset": str(manifest.settings.get("dataset", "")),
        "data_sha256": manifest.data_sha256,
        "metrics": manifest.metrics,
        "settings": manifest.settings,
    }


def _specification(run: str) -> str:
    last = run.rpartition("-")[2]
    is_hash = len(last) == 8 and not set(last) - set("0123456789abcdef")
    return last if is_hash else ""


def _image(views: Sequence[View]) -> str:
    """Return the image of the training program; empty if there is not exactly one."""
    images = {
        container.node["image"].text
        for view in views
        for workload in view.workloads
        for pod in workload.pods
        for container in pod.containers
        if container.node["name"].text in _CONTAINERS
    }
    image = images.pop() if len(images) == 1 else None
    return image or ""


def _verdict(
    run: str, objects: Sequence[Object], views: Sequence[View], settings: Mapping[str, Any]
) -> Verdict:
    """Check the objects with the policy pack, assuming that their namespace and queues exist."""
    workloads = [workload for view in views for workload in view.workloads]
    queues = {workload.queue(pod).text for workload in workloads for pod in workload.pods}
    namespace = objects[0]["metadata"].get("namespace", "default")
    violations = findings(run, objects, namespace, sorted(filter(None, queues)), settings)
    return Verdict(
        passed=not any(each.mandatory for each in violations),
        rules=len(RULES),
        refused=tuple(sorted({each.rule for each in violations if each.mandatory})),
        advice=tuple(sorted({each.rule for each in violations if not each.mandatory})),
    )
