"""How long gangs have waited for their nodes, from what Volcano 1.10's scheduler tells of each.

Its series (pkg/scheduler/metrics) are named by the PodGroup. `e2e_job_scheduling_start_time` is
when that was made, in seconds, `e2e_job_scheduling_duration` the milliseconds from then until a pod
was last given a node, be it in an attempt that was given up since others of the gang had none.
`unschedule_task_count` is how many pods are without one.
"""

from typing import Final

from infra.observability.rule import Recording

QUEUE_WAIT: Final = "gpu_platform:queue_wait_seconds"
_FIRST: Final = "gpu_platform:gang_first_wait_seconds"
_GANG: Final = "namespace, queue, gang"


def recordings() -> list[Recording]:
    """The wait of each gang: until it was whole for the first time, or else until now."""
    return [
        Recording(_FIRST, _first()),
        Recording(
            QUEUE_WAIT,
            f"{_FIRST} or (time() - {_of_gangs('volcano_e2e_job_scheduling_start_time')} "
            f"and on (gang) {_missing()} > 0)",
        ),
    ]


def _first() -> str:
    """The least that was told of a whole gang, which this series remembers by itself.

    A pod that is replaced sets Volcano's number again, and a restart of the scheduler forgets it.
    """
    now = (
        f"{_of_gangs('volcano_e2e_job_scheduling_duration')} / 1000 and on (gang) {_missing()} == 0"
    )
    before = f"last_over_time({_FIRST}[1h])"
    either = f"{_marked(now, 'now')} or {_marked(before, 'before')}"
    known = _of_gangs("volcano_e2e_job_scheduling_start_time")
    return f"min by ({_GANG}) ({either}) and on ({_GANG}) {known}"


def _marked(series: str, mark: str) -> str:
    return f'label_replace({series}, "told", "{mark}", "", "")'


def _of_gangs(series: str) -> str:
    return f"max by ({_GANG}) ({of_group(series, 'gang')})"


def of_group(series: str, label: str) -> str:
    """A series of Volcano's with its PodGroup's `namespace`, and its name under this label."""
    named = f'label_replace({series}, "namespace", "$1", "job_namespace", "(.*)")'
    return f'label_replace({named}, "{label}", "$1", "job_name", "(.*)")'


def _missing() -> str:
    named = 'label_replace(volcano_unschedule_task_count, "gang", "$1", "job_id", "(.*)")'
    return f"max by (gang) ({named})"
