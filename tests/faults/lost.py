"""Requests that may fail in a fault, as counts by status code or error."""

CLIENTS = 4
REFUSED = {"ConnectError", "ConnectTimeout"}
"""No server had accepted these connections, so clients can retry."""


def nothing(lost: dict[str, int]) -> bool:
    """Return True if every request succeeded."""
    return not lost


def answered(lost: dict[str, int]) -> bool:
    """Return True if at most one request per client failed, with status 503."""
    return set(lost) <= {"503"} and sum(lost.values()) <= CLIENTS


def of_one_server(lost: dict[str, int]) -> bool:
    """Return True if at most one accepted request per client was lost."""
    return sum(count for what, count in lost.items() if what not in REFUSED) <= CLIENTS
