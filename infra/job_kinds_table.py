"""`python -m infra.job_kinds_table` writes the tables of docs/jobs.md from what the code knows."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from infra.settings.jobs.capabilities import CAPABILITIES
from infra.settings.jobs.kinds import FACTS, KINDS, KindFacts
from infra.settings.jobs.network import NETWORK_DEFAULTS

PAGE: Final = Path(__file__).parent.parent / "docs" / "jobs.md"
_PLACE: Final = "<!-- {name}: written by `python -m infra.job_kinds_table` -->\n{body}<!-- end -->"


def kinds_table() -> str:
    """Kinds, what they are made of and need, and what happens after a fault."""
    rows = [
        (f"`{kind}`", facts.objects, _needs(facts), facts.after_fault)
        for kind, facts in FACTS.items()
    ]
    return _table(("kind", "made of", "needs", "after a fault"), rows)


def _needs(facts: KindFacts) -> str:
    return f"{facts.needs}; {facts.program} in the image" if facts.program else facts.needs


def capabilities_table() -> str:
    """What each kind can do, one setting a row; what is not here every kind can do."""
    rows = [
        (
            f"{capability.title} (`{capability.key}`)",
            *("yes" if kind in capability.kinds else "no" for kind in KINDS),
        )
        for capability in CAPABILITIES
    ]
    return _table(("", *KINDS), rows)


def networks_table() -> str:
    """What a network alone sets."""
    rows = [
        (f"`{network}`", ", ".join(f"`{name}={value}`" for name, value in variables.items()))
        for network, variables in NETWORK_DEFAULTS.items()
    ]
    return _table(("`nccl.network`", "sets"), rows)


TABLES: Final = {
    "kinds": kinds_table,
    "capabilities": capabilities_table,
    "networks": networks_table,
}


def with_tables(page: str) -> str:
    """The page with its tables as they are now. Raises ValueError where one has no place."""
    for name, table in TABLES.items():
        pattern = re.escape(_PLACE).replace(r"\{name\}", name).replace(r"\{body\}", ".*?")
        text = _PLACE.format(name=name, body=table())
        places = re.split(pattern, page, flags=re.DOTALL)
        page = text.join(places)
        if (count := len(places) - 1) != 1:
            raise ValueError(f"{PAGE.name} has {count} places for the table {name!r}: it needs one")
    return page


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    return "".join(f"{line}\n" for line in _lines(list(head), rows))


def _lines(head: list[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
