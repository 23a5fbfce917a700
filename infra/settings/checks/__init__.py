"""Checks between concerns.

Every public function of these modules is a check: it compares the concerns that its parameters
name and yields a sentence for each problem.
"""

from collections.abc import Callable, Iterator, Mapping
from inspect import isfunction, signature
from typing import Any, Final

from infra.settings.checks import capacity, queues, references, storage

CHECKS: Final[tuple[Callable[..., Iterator[str]], ...]] = tuple(
    function
    for module in (capacity, queues, references, storage)
    for name, function in vars(module).items()
    if isfunction(function) and function.__module__ == module.__name__ and name[0] != "_"
)


def check(concerns: Mapping[str, Any]) -> Iterator[str]:
    """Yield every problem between the concerns.

    A check runs only if all concerns that it compares are given, so that the caller can leave out
    the invalid ones and each mistake is reported once.
    """
    for function in CHECKS:
        needed = signature(function).parameters
        if needed.keys() <= concerns.keys():
            yield from function(**{name: concerns[name] for name in needed})
