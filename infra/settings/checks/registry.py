"""The list of checks, and the words that they share."""

from collections.abc import Callable, Collection, Iterator

from infra.settings.problems import full_key

Check = Callable[..., Iterator[str]]
"""Compares the concerns that it is called with and yields a sentence for each problem."""

CHECKS: list[tuple[tuple[str, ...], Check]] = []
"""The checks, each with the names of the concerns that are its arguments."""


def check(*concerns: str) -> Callable[[Check], Check]:
    """Register a check and the concerns that are its arguments."""

    def register(function: Check) -> Check:
        CHECKS.append((concerns, function))
        return function

    return register


def choice(known: Collection[str]) -> str:
    """What to write instead of a name that is not known."""
    return f"write one of: {', '.join(sorted(known))}" if known else "none is declared yet"


def job_key(key: str, *path: str) -> str:
    """Full key of something in a training job."""
    return full_key("training", "jobs", key, *path)


def service_key(key: str, *path: str) -> str:
    """Full key of something in an inference service."""
    return full_key("inference", "services", key, *path)
