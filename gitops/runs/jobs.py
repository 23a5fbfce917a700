"""Which job a PodGroup stands for, and whether that still wants pods."""

from collections.abc import Sequence

from gitops.runs.picture import BATCH_JOB, Object, Picture, group_of, key, owner
from gitops.runs.states import JOB_KINDS, State, state_of


def wants_pods(picture: Picture, group: Object) -> bool:
    """Whether a group's job is there and neither over nor suspended.

    The groups of kinds that are not Volcano's own outlive their jobs, and Volcano takes them as
    pending again when the pods are gone.
    """
    state = job_state(picture, group["metadata"]["namespace"], owner(group))
    if state is None:
        return any(group_of(pod) == key(group) for pod in picture.active())
    return not state.over and state is not State.SUSPENDED


def job_state(picture: Picture, namespace: str, name: str) -> State | None:
    """The state of the job of this name, of whatever kind; None where there is none."""
    for kind in JOB_KINDS:
        job = picture.find(kind, namespace, name)
        if job is not None and not is_made_by_another(kind, job):
            return state_of(kind, job, 0)
    return None


def is_made_by_another(kind: str, job: Object) -> bool:
    """Whether it is what another kind's job consists of, as Ray and JobSet make Jobs.

    The steps of a JobFlow are not meant: each has a group of its own.
    """
    return kind == BATCH_JOB and is_controlled(job)


def is_controlled(thing: Object) -> bool:
    """Whether an object belongs to another."""
    owners: Sequence[Object] = thing["metadata"].get("ownerReferences", ())
    return any(one.get("controller") for one in owners)
