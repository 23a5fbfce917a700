"""Which requests may be without an answer 200 after a fault: counts by what came instead."""

CLIENTS = 4
REFUSED = {"ConnectError", "ConnectTimeout"}
"""No server had accepted these connections: no accepted request is lost, and a client retries."""


def nothing(lost: dict[str, int]) -> bool:
    """Every request was answered."""
    return not lost


def told(lost: dict[str, int]) -> bool:
    """What a killed worker was computing, and that is told: no more than a request a client."""
    return set(lost) <= {"503"} and sum(lost.values()) <= CLIENTS


def of_one_server(lost: dict[str, int]) -> bool:
    """What a killed server had accepted: no more than a request a client."""
    return sum(count for what, count in lost.items() if what not in REFUSED) <= CLIENTS
