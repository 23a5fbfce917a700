"""`python -m infra.job_kinds_table` writes the tables of docs/jobs.md from what the code knows."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from infra.settings.jobs.capabilities import LIMITED_SETTINGS
from infra.settings.jobs.network import NETWORK_DEFAULTS
from kube.kinds import KINDS
from kube.kinds.record import Kind

PAGE: Final = Path(__file__).parent.parent / "docs" / "jobs.md"
_PLACE: Final = "<!-- {name}: written by `python -m infra.job_kinds_table` -->\n{body}<!-- end -->"


def kinds_table() -> str:
    """Kinds, what they are made of and need, and what happens after a fault."""
    rows = [
        (f"`{name}`", kind.objects, _needs(kind), kind.after_fault) for name, kind in KINDS.items()
    ]
    return _table(("kind", "made of", "needs", "after a fault"), rows)


def _needs(kind: Kind) -> str:
    return f"{kind.needs}; {kind.image_needs} in the image" if kind.image_needs else kind.needs


def capabilities_table() -> str:
    """What each kind can do, one setting a row; what is not here every kind can do."""
    rows = [
        (
            f"{setting.title} (`{setting.key}`)",
            *("yes" if kind in setting.kinds else "no" for kind in KINDS),
        )
        for setting in LIMITED_SETTINGS
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
