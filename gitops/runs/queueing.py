"""Which of the jobs that wait in a queue comes first."""

from collections import Counter

from gitops.runs.jobs import wants_pods
from gitops.runs.picture import Object, Picture, group_of, key, queue_of


def positions(picture: Picture) -> dict[tuple[str, str], int]:
    """The places of the PodGroups that wait, by namespace and name, from 1 in every queue.

    By priority, then by age, which is the order of Volcano's plugins `priority` and `gang` among
    jobs that have nothing yet.
    """
    priority: dict[tuple[str, str], int] = {}
    for pod in picture.active():
        if (name := group_of(pod)) is not None:
            priority[name] = max(priority.get(name, 0), int(pod["spec"].get("priority") or 0))

    def order(group: Object) -> tuple[int, str]:
        return -priority.get(key(group), 0), str(group["metadata"].get("creationTimestamp", ""))

    taken: Counter[str] = Counter()
    found: dict[tuple[str, str], int] = {}
    waiting = [group for group in picture.all("PodGroup") if _waits(picture, group)]
    for group in sorted(waiting, key=order):
        taken[queue_of(group)] += 1
        found[key(group)] = taken[queue_of(group)]
    return found


def _waits(picture: Picture, group: Object) -> bool:
    phase = group.get("status", {}).get("phase", "Pending")
    return phase in ("Pending", "Inqueue") and wants_pods(picture, group)
