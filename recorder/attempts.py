"""Program that starts a scheduled run from its templates, and waits until it has finished.

    python3 -m recorder attempt '{"run": …, "steps": {…}}'     in a pod of a CronJob

The run is named after the pod's Job, so that the program finds the run again after a restart.
The Job owns the run: when the CronJob deletes the Job, the run is deleted as well.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from httpx2 import HTTPError, HTTPStatusError, codes
from lightkube import Client
from lightkube.generic_resource import GenericNamespacedResource, create_namespaced_resource

from kube.kinds.record import Resource, State
from kube.kinds.volcano import (
    ATTEMPT_FAILED,
    FLOW,
    JOB,
    TEMPLATE,
    attempt_name,
    flow_spec,
    template_name,
)

_POLL_SECONDS: Final = 10.0
"""Time (s) between two polls of the run."""

_OMITTED_ANNOTATIONS: Final = ("pulumi.com/", "kubectl.kubernetes.io/")
"""Prefixes of annotations that are not copied, because Pulumi and kubectl use them to manage the
template."""

_log = logging.getLogger("attempt")


def _resource(record: Resource) -> type[GenericNamespacedResource]:
    return create_namespaced_resource(record.group, record.version, record.kind, record.plural)


_FLOWS: Final = _resource(FLOW)
_TEMPLATES: Final = _resource(TEMPLATE)


class AttemptError(Exception):
    """Error for a run that cannot be started or has failed; the message states the reason."""


@dataclass(frozen=True)
class Plan:
    """Name of the run whose templates are copied, and the dependencies of each of its steps."""

    run: str
    steps: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Attempt:
    """A scheduled run, started by a Job of its CronJob."""

    plan: Plan
    api: Client
    job: str
    uid: str
    wait: Callable[[], object] = lambda: time.sleep(_POLL_SECONDS)

    @property
    def name(self) -> str:
        """Name of the run."""
        return attempt_name(self.plan.run, self.job)

    def run(self) -> None:
        """Start the run unless it already exists, and wait until it has finished.

        Requests that fail because of an API server outage are retried.

        Raises:
            AttemptError: If the run cannot be started or fails.
        """
        started = False
        while True:
            try:
                started = started or self._exists()
                if not started:
                    self._start()
                    started = True
                if self._has_succeeded():
                    return
            except HTTPStatusError as error:
                code = error.response.status_code
                if code < codes.INTERNAL_SERVER_ERROR and code != codes.TOO_MANY_REQUESTS:
                    raise AttemptError(f"{self.name}: {_reason(error)}") from None
                _log.warning("%s", error)
            except HTTPError as error:
                _log.warning("%s: %s", type(error).__name__, error)
            self.wait()

    def _exists(self) -> bool:
        try:
            self.api.get(_FLOWS, self.name)
        except HTTPStatusError as error:
            if error.response.status_code != codes.NOT_FOUND:
                raise
            return False
        return True

    def _start(self) -> None:
        """Create the JobTemplates and the JobFlow of the run."""
        labels: dict[str, str] = {}
        for step in self.plan.steps:
            template = self.api.get(_TEMPLATES, template_name(self.plan.run, step))
            metadata = self._renamed(template["metadata"])
            # The first step is the training step, whose template has the labels of the run.
            labels = labels or metadata.get("labels", {})
            annotations = {
                name: value
                for name, value in metadata.get("annotations", {}).items()
                if not name.startswith(_OMITTED_ANNOTATIONS)
            }
            self._create(
                _TEMPLATES,
                TEMPLATE,
                {
                    "name": template_name(self.name, step),
                    "labels": metadata.get("labels", {}),
                    "annotations": annotations,
                },
                self._renamed(template["spec"]),
            )
        self._create(
            _FLOWS,
            FLOW,
            {"name": self.name, "labels": labels},
            flow_spec(self.name, self.plan.steps),
        )
        _log.info("%s: started", self.name)

    def _create(
        self,
        type_: type[GenericNamespacedResource],
        resource: Resource,
        metadata: dict[str, Any],
        spec: dict[str, Any],
    ) -> None:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.job, "uid": self.uid}
        manifest = type_.from_dict(
            {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": {**metadata, "ownerReferences": [owner]},
                "spec": spec,
            }
        )
        try:
            self.api.create(manifest)
        except HTTPStatusError as error:
            # An earlier pod of the same Job may have created the object.
            if error.response.status_code != codes.CONFLICT:
                raise

    def _has_succeeded(self) -> bool:
        """Return whether the run has succeeded. Raise AttemptError if it has failed."""
        status = self.api.get(_FLOWS, self.name).get("status") or {}
        for step in status.get("jobStatusList") or ():
            if JOB.states.get(step.get("state", "")) is State.FAILED:
                raise AttemptError(f"{self.name}: {step['name']} has failed")
        return FLOW.state({"state": {}, **status}) is State.SUCCEEDED

    def _renamed(self, value: Any) -> Any:
        """Return a copy of a JSON document in which this run's name replaces `plan.run`."""
        return json.loads(json.dumps(value).replace(self.plan.run, self.name))


def _reason(error: HTTPStatusError) -> str:
    try:
        return str(error.response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return str(error)


def start(text: str) -> int:
    """Start a plan's run, wait until it finishes, and return the exit code."""
    try:
        plan = Plan(**json.loads(text))
    except (ValueError, TypeError) as error:
        _log.error(
            "the plan cannot be read: %s; use the image version that matches the stack", error
        )
        return ATTEMPT_FAILED
    attempt = Attempt(plan, Client(), os.environ["JOB_NAME"], os.environ["JOB_UID"])
    try:
        attempt.run()
    except AttemptError as error:
        _log.error("%s", error)
        return ATTEMPT_FAILED
    _log.info("%s: succeeded", attempt.name)
    return 0
