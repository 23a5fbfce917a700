"""States of jobs, their steps and their PodGroups."""

from collections.abc import Iterator, Sequence

from gitops.runs.snapshot import Object, Snapshot, group_of, key, owner
from kube.kinds import RESOURCES, volcano
from kube.kinds.record import Resource, State
from kube.kinds.volcano import job_prefix


def state_of(resource: Resource, job: Object, running: int) -> State:
    """Return the state of a job with this number of running pods."""
    state = resource.state(job.get("status", {}))
    if state is None and resource is volcano.FLOW:
        # Volcano reports a JobFlow with a failed step as running, although it starts no more steps.
        phases = set(steps(job).values())
        decisive = (State.FAILED, State.RESTARTING, State.SUSPENDED)
        state = next((state for state in decisive if state in phases), None)
    return state or (State.RUNNING if running else State.WAITING)


def causes(resource: Resource, job: Object, pods: Sequence[Object]) -> list[str]:
    """Return the reasons that a failed job and its failed pods report, if any.

    Volcano reports no reason when it stops restarting a job whose `retryCount` has reached
    `maxRetry`, so this reason is derived from both fields.
    """
    status = job.get("status", {})
    maximum = job.get("spec", {}).get("maxRetry")
    texts = [
        f"{resource.title}: {text}"
        for record in _records(resource, status)
        if (text := reason(record))
    ]
    if maximum is not None and (used := resource.restart_count(status)) >= maximum:
        texts.append(f"{resource.title}: {used} of {maximum} restarts are used up")
    return texts + [f"{pod['metadata']['name']}: {end}" for pod in pods if (end := failure(pod))]


def failure(pod: Object) -> str:
    """Return the reasons and exit codes with which a failed pod and its containers terminated."""
    status = pod.get("status", {})
    if status.get("phase") != "Failed":
        return ""
    ends = [reason(status)]
    for container in status.get("containerStatuses", ()):
        end = container.get("state", {}).get("terminated", {})
        if code := end.get("exitCode"):
            ends.append(f"exit code {code} ({end.get('reason', 'Error')})")
    return "; ".join(filter(None, ends))


def reason(record: Object) -> str:
    """Return the reason and the message of a status or condition, if it contains them."""
    return ": ".join(filter(None, (record.get("reason"), record.get("message"))))


def _records(resource: Resource, status: Object) -> Iterator[Object]:
    yield status
    if isinstance(state := status.get("state"), dict):
        yield state
    conditions = status.get("conditions", ())
    # A JobFlow's conditions (a mapping keyed by job) contain no reasons. The pods report them.
    for condition in () if isinstance(conditions, dict) else conditions:
        if resource.states.get(condition.get("type")) is State.FAILED:
            yield condition


def steps(flow: Object) -> dict[str, State]:
    """Map the names of a JobFlow's jobs to their states. For other kinds, the map is empty."""
    statuses = flow.get("status", {}).get("jobStatusList", ())
    states = volcano.JOB.states
    return {job["name"]: states.get(job.get("state", ""), State.WAITING) for job in statuses}


def stage(flow: Object) -> str:
    """Return a JobFlow's failed steps or, if there are none, its unfinished steps."""
    phases = steps(flow)
    failed = [name for name, state in phases.items() if state is State.FAILED]
    active = [name for name, state in phases.items() if not state.finished]
    prefix = job_prefix(flow["metadata"]["name"])
    return ", ".join(step.removeprefix(prefix) for step in failed or active)


def needs_pods(snapshot: Snapshot, group: Object) -> bool:
    """Return whether the job of a PodGroup is neither finished nor suspended.

    If no job is found, return whether the PodGroup has active pods.

    The PodGroup's phase is not sufficient: unless the job is a Volcano Job, the PodGroup outlives
    the job, and Volcano sets the phase to pending again when the pods are gone.
    """
    state = _job_state(snapshot, group["metadata"]["namespace"], owner(group))
    if state is None:
        return any(group_of(pod) == key(group) for pod in snapshot.active())
    return not state.finished and state is not State.SUSPENDED


def _job_state(snapshot: Snapshot, namespace: str, name: str) -> State | None:
    """Return the state of the job with this name, regardless of its kind; None if there is none."""
    for resource in RESOURCES:
        job = snapshot.find(resource.name, namespace, name)
        if job is not None and not is_part_of_a_job(resource, job):
            return state_of(resource, job, 0)
    return None


def is_part_of_a_job(resource: Resource, job: Object) -> bool:
    """Return whether an object of another kind, such as a JobSet, created this job.

    Return False for the steps of a JobFlow, because each step has a separate PodGroup.
    """
    return resource is not volcano.JOB and is_controlled(job)


def is_controlled(manifest: Object) -> bool:
    """Return whether an object has a controller."""
    owners: Sequence[Object] = manifest["metadata"].get("ownerReferences", ())
    return any(each.get("controller") for each in owners)
