"""Small pieces of Markdown, in which nothing that comes from outside can be more than text."""

import html
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal

_SPECIAL = re.compile(r"([\\`*_\[\]|~#])")
_KIB = 1024


def plain(text: str) -> str:
    """Text as it is: no markup, no HTML, no mention of anybody."""
    shown = _SPECIAL.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))
    return shown.replace("@", "@\u200b")


def sentence(text: str) -> str:
    """Like `plain`, with code spans between back-ticks kept."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return plain(text)
    return "".join(code(part) if index % 2 else _kept(part) for index, part in enumerate(parts))


def _kept(part: str) -> str:
    """`plain` with the spaces at both ends, which stand between it and the code beside it."""
    before = " " if part[:1].isspace() else ""
    after = " " if part[-1:].isspace() and part.strip() else ""
    return f"{before}{plain(part)}{after}"


def code(text: str) -> str:
    """A code span."""
    shown = " ".join(text.replace("`", "'").split())
    return f"`{shown}`" if shown else ""


def cell(text: str) -> str:
    """A code span in a table, where a bar must be escaped even in code."""
    return code(text).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """A table whose first `left` columns are text and whose others are numbers."""
    marks = [":--" if index < left else "--:" for index in range(len(head))]
    lines = [head, marks, *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def fenced(language: str, lines: Iterable[str]) -> list[str]:
    """A code block whose fence no line in it can close."""
    body = list(lines)
    longest = max((len(run) for line in body for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *body, fence]


def folded(summary: str, lines: Iterable[str]) -> list[str]:
    """Lines behind a heading that opens them."""
    return ["<details>", f"<summary>{html.escape(summary)}</summary>", "", *lines, "", "</details>"]


def number(value: Decimal) -> str:
    """A number without needless zeros."""
    return f"{value.normalize():f}" if value else "0"


def signed(value: Decimal, shown: str) -> str:
    """A difference: `+4`, `-4`, or `0`; `shown` is its amount without sign."""
    if not value:
        return "0"
    return f"+{shown}" if value > 0 else f"-{shown}"


def money(value: Decimal) -> str:
    """An amount of money: cents below a thousand, whole units above."""
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def amount(resource: str, value: Decimal) -> str:
    """An amount of a resource: bytes as Gi, everything else as a number."""
    if not resource.endswith(("memory", "storage")):
        return number(value)
    for suffix, power in (("Ti", 4), ("Gi", 3), ("Mi", 2)):
        unit = Decimal(_KIB**power)
        # Up to 10Ti in Gi, so that what is asked for and what is left can be compared.
        if abs(value) >= unit * (10 if suffix == "Ti" else 1):
            return f"{number((value / unit).quantize(Decimal('0.1')))}{suffix}"
    return number(value)
