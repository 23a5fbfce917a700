"""Checks that involve several sections of the settings.

Every public function of this package's modules is a check. Its parameters name the sections that it
requires, and it yields a message for each problem.
"""

from collections.abc import Callable, Iterator, Mapping
from inspect import isfunction, signature
from typing import Any, Final

from infra.settings.checks import capacity, queues, references, routes, storage

CHECKS: Final[tuple[Callable[..., Iterator[str]], ...]] = tuple(
    function
    for module in (capacity, queues, references, routes, storage)
    for name, function in vars(module).items()
    if isfunction(function) and function.__module__ == module.__name__ and name[0] != "_"
)

SECTIONS: Final = {function: signature(function).parameters.keys() for function in CHECKS}
"""Names of the sections that each check requires."""


def check(sections: Mapping[str, Any]) -> Iterator[str]:
    """Run all checks and yield a sentence for each problem.

    A check runs only if all sections that it requires are given. The caller leaves out invalid
    sections, so that each error is reported only once.
    """
    for function, needed in SECTIONS.items():
        if needed <= sections.keys():
            yield from function(**{name: sections[name] for name in needed})
