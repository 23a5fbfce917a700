"""Rules about retries and deadlines for training, and about updates that wait for GPU jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from kube.quantities import quantity_or_none
from policies.controllers import Workload
from policies.rule import Edit, Level, Rule, Severity, Violation, workload_rule
from policies.rules.scheduling import training_pods
from policies.settings import RoleConfig
from policies.values import UNKNOWN, Node
from policies.workloads import Pod


class RetryConfig(RoleConfig):
    """Configuration of `training-retries-bounded`."""

    max_retries: int = Field(
        default=10,
        ge=0,
        description="Maximum number of retries. For Jobs and Kubeflow's jobs, which count every "
        "failed pod of a gang, this is the maximum per pod.",
    )


_COUNTED_BY_POD = "backoffLimit"
_LIMITS = (_COUNTED_BY_POD, "backoffLimitPerIndex", "maxRetry", "maxRestarts")


@workload_rule(
    name="training-retries-bounded",
    description="Training pods are not restarted in place forever, and retries are limited.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set restartPolicy Never (or OnFailure, but not in Volcano Jobs) and a retry "
    "limit.",
    config=RetryConfig,
)
def training_retries_bounded(workload: Workload, config: RetryConfig) -> Iterator[Violation]:
    """A run that fails forever holds its GPUs forever."""
    pods = training_pods(workload, config)
    for pod in pods:
        yield from _restarts_in_place(workload, pod)
        strategy = pod.spec["retryStrategy"]
        count = quantity_or_none(strategy["limit"].value)
        if isinstance(strategy.value, dict) and (count is None or count > config.max_retries):
            yield Violation(strategy["limit"], f"a retry limit of at most {config.max_retries}")
    if not pods:
        return
    max_retries = config.max_retries
    # Kubeflow's operator fails a job when its retries reach the limit.
    by_pod = max_retries * int(workload.size or 1) + workload.additional_retries
    retry_limit = workload.retry_limit
    if retry_limit is not None and retry_limit.known:
        highest = by_pod if workload.counts_each_pod else max_retries
        min_retries = workload.min_retry_limit
        count = quantity_or_none(retry_limit.value)
        if count is None or not min_retries <= count <= highest:
            yield Violation(retry_limit, f"a retry limit from {min_retries} to {highest}")
    for limit in _nested_limits(workload):
        highest = by_pod if limit.steps[-1] == _COUNTED_BY_POD else max_retries
        count = quantity_or_none(limit.value)
        if (retry_limit is None or limit.steps != retry_limit.steps) and (
            count is None or count > highest
        ):
            yield Violation(limit, f"a retry limit of at most {highest}")
    for ignored in _uncounted_failures(workload):
        yield Violation(ignored, "an action that counts the failure")


def _restarts_in_place(workload: Workload, pod: Pod) -> Iterator[Violation]:
    """Yield a violation for each setting that lets the kubelet restart containers forever."""
    policy = workload.restart_policy(pod)
    counted = (
        ("Never", "OnFailure", "ExitCode") if workload.counts_container_restarts else ("Never",)
    )
    expected = '"Never", because no limit counts restarts in place'
    if policy.known and policy.value not in counted:
        yield Violation(policy, expected)
    for container in pod.containers if pod.spec.known else ():
        override, rules = container.node["restartPolicy"], container.node["restartPolicyRules"]
        if container.kind == "main" and override.present and override.value != "Never":
            yield Violation(override, expected)
        for rule in rules.items():
            if rule["action"].present:
                yield Violation(rule["action"], "nothing: no limit counts these restarts")


def _objects_outside_pods(workload: Workload) -> Iterator[Node]:
    """Yield the objects of a workload's `spec`, except its pod specifications."""
    specs = {pod.spec.steps for pod in workload.pods}
    pending = [workload.resource.root["spec"]]
    while pending:
        node = pending.pop()
        if isinstance(node.value, dict):
            yield node
        pending += [child for child in node.branches() if child.steps not in specs]


def _nested_limits(workload: Workload) -> Iterator[Node]:
    """Yield the retry limits at any depth, such as those of a JobSet's jobs."""
    for node in _objects_outside_pods(workload):
        yield from (node[key] for key in _LIMITS if node[key].present)


def _uncounted_failures(workload: Workload) -> Iterator[Node]:
    """Yield the failure policy actions that do not count a failure as a retry.

    Disruptions by the cluster need not be counted.
    """
    for node in _objects_outside_pods(workload):
        for rule in node["podFailurePolicy"]["rules"].items():
            conditions = [item["type"].value for item in rule["onPodConditions"].items()]
            disrupted = conditions and set(conditions) <= {"DisruptionTarget", UNKNOWN}
            if rule["action"].value == "Ignore" and not disrupted:
                yield rule["action"]
        for rule in node["failurePolicy"]["rules"].items():
            reasons = [item.value for item in rule["onJobFailureReasons"].items()]
            disrupted = reasons and set(reasons) <= {"PodFailurePolicy"}
            if rule["action"].value == "RestartJobSetAndIgnoreMaxRestarts" and not disrupted:
                yield rule["action"]


@workload_rule(
    name="training-ends",
    description="Training has a deadline.",
    severity=Severity.LOW,
    level=Level.ADVISORY,
    remediation="Set activeDeadlineSeconds on the Job or the pods.",
    config=RoleConfig,
)
def training_ends(workload: Workload, config: RoleConfig) -> Iterator[Violation]:
    """A run that hangs holds its GPUs until someone notices."""
    pods = training_pods(workload, config)
    if not pods or workload.deadline is None:
        return
    limits = [workload.deadline, *(pod.spec["activeDeadlineSeconds"] for pod in pods)]
    if all(limit.absent for limit in limits):
        yield Violation(limits[0], "the maximum duration in seconds")


def _is_awaited(workload: Workload, config: RoleConfig) -> bool:
    flag = workload.skip_await_annotation
    requests_gpu = any(pod.gpu_containers(config.accelerators) for pod in workload.pods)
    return flag is not None and flag.known and flag.value != "true" and requests_gpu


def _skip_await(workload: Workload, config: RoleConfig) -> Iterator[Edit]:
    if _is_awaited(workload, config) and workload.skip_await_annotation is not None:
        yield Edit(workload.skip_await_annotation.steps, "true")


@workload_rule(
    name="gpu-job-not-awaited",
    description="An update does not wait for a GPU job to end.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation='Set the pulumi.com/skipAwait: "true" annotation on the job.',
    config=RoleConfig,
    remedy=_skip_await,
    about_pulumi=True,
)
def gpu_job_not_awaited(workload: Workload, config: RoleConfig) -> Iterator[Violation]:
    """Pulumi waits ten minutes for a Job to complete and then reports the training as failed."""
    if _is_awaited(workload, config) and workload.skip_await_annotation is not None:
        yield Violation(workload.skip_await_annotation, '"true"')


RULES: list[Rule[Any]] = [training_retries_bounded, training_ends, gpu_job_not_awaited]
