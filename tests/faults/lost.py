"""Checks of the requests that failed during a fault, counted by status code or error."""

CLIENTS = 4
NEVER_ACCEPTED = {"ConnectError", "ConnectTimeout"}
"""Errors of connections that no server had accepted, so that clients can retry."""


def no_losses(lost: dict[str, int]) -> bool:
    """Return True if every request succeeded."""
    return not lost


def answered_with_503(lost: dict[str, int]) -> bool:
    """Return True if at most one request per client failed, with status 503."""
    return set(lost) <= {"503"} and sum(lost.values()) <= CLIENTS


def lost_by_one_server(lost: dict[str, int]) -> bool:
    """Return True if at most one accepted request per client was lost."""
    return sum(count for what, count in lost.items() if what not in NEVER_ACCEPTED) <= CLIENTS
