"""Markdown comment with the report, for GitHub and GitLab.

The template escapes every value unless one of the filters below returns Markdown.
"""

import html
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gitops.forecast.answer import duration, durations
from gitops.preview.report import CostRow, PoolRow, Report, total
from gitops.prices import HOST_RESOURCES
from infra.settings.amounts import plural
from kube.accelerators import NVIDIA_GPU

MAX_LENGTH: Final = 65_000
"""Maximum length of a comment. GitHub accepts 65,536 characters, GitLab a million."""

HEADLINES = {"unchanged": "nothing changes", "blocked": "blocked", "failed": "the preview failed"}
_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")
_REFERENCES = re.compile(r"([@#]|(?:!|&amp;)(?=\d))")
"""First character of a mention or reference: `@` (user), `#` (issue) or, on GitLab, `!` (merge
request) or `&` (epic). Git hosts recognize mentions and references even if this character is
escaped."""
_FENCE = re.compile(r"`{3,}")
_KIB = 1024
_MIN_DAYS = 2


def marker(kind: str, stack: str) -> str:
    """Return the hidden line that identifies a comment."""
    return f"<!-- gpu-platform {kind} {stack} -->"


def render(report: Report, limit: int = MAX_LENGTH, details: str = "report.json") -> str:
    """Return the comment with at most `limit` characters.

    Collapsed parts that do not fit are omitted. If the summary alone is too long, it is truncated.
    """
    kind = "drift" if report.mode == "drift" else "preview"
    headline = _markdown(marker(kind, report.stack))
    body = str(_TEMPLATE.summary(report, headline, _headline(report), _errors(report)))
    parts = [
        str(_TEMPLATE.resources(report)),
        *map(str, map(_TEMPLATE.manifest, report.differences)),
    ]
    complete = "".join([body, *parts])
    if len(complete) <= limit:
        return complete
    note = f"\n… More details do not fit into a comment; see {code(details)}.\n"
    return _cut(body, parts, limit - len(note)) + note


def _cut(body: str, parts: Sequence[str], limit: int) -> str:
    """Return the body with the parts that fit, or only the lines of the body that fit."""
    result = body.removesuffix("\n")
    if len(result) > limit:
        return _cut_lines(result, limit)
    for part in filter(None, parts):
        extended = f"{result}\n{part.removesuffix(chr(10))}"
        if len(extended) > limit:
            break
        result = extended
    return result


def _cut_lines(text: str, limit: int) -> str:
    """Return the lines that fit, and close an open code fence."""
    kept: list[str] = []
    fence, left = "", limit
    for line in text.split("\n"):
        opened = _FENCE.match(line)
        space = left - len(fence) - 2
        if len(line) > space:
            # A truncated Markdown line could leave markup open. A line in a code block cannot.
            if fence and space > 1:
                kept.append(f"{line[: space - 1]}…")
            break
        if opened and not fence:
            fence = opened.group()
        elif fence and line == fence:
            fence = ""
        kept.append(line)
        left -= len(line) + 1
    return "\n".join([*kept, *([fence] if fence else [])])


def _headline(report: Report) -> str:
    mandatory = sum(violation.mandatory for violation in report.violations)
    if report.status == "blocked" and mandatory:
        return f"blocked by {plural(mandatory, 'violation')}"
    if report.status == "changes":
        if not report.resources and report.mode == "drift":
            return "deletions in progress"
        if not report.resources:
            return "only options or outputs change"
        return plural(len(report.resources), "change")
    return HEADLINES[report.status]


def _errors(report: Report) -> list[str]:
    # If violations block the update, the engine's errors only repeat them.
    blocked = report.status == "blocked" and report.complete
    if report.status in ("unchanged", "changes") or blocked:
        return []
    return [line for error in report.errors for line in error.splitlines()]


def plain(text: str) -> Markup:
    """Return text in which Markdown, HTML, user mentions and references are escaped."""
    escaped = _SPECIAL.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))
    return _markdown(_REFERENCES.sub("\\1\u200b", escaped))


def sentence(text: str) -> Markup:
    """Return text in which everything except code spans between backticks is escaped."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return plain(text)
    return _markdown(
        "".join(code(p) if i % 2 else _with_outer_spaces(p) for i, p in enumerate(parts))
    )


def _with_outer_spaces(part: str) -> str:
    """Return escaped text that keeps the spaces next to code spans."""
    before = " " if part[:1].isspace() else ""
    after = " " if part[-1:].isspace() and part.strip() else ""
    return f"{before}{plain(part)}{after}"


def code(text: str) -> Markup:
    """Return a code span."""
    line = " ".join(text.replace("`", "'").split())
    return _markdown(f"`{line}`" if line else "")


def cell(text: str) -> Markup:
    """Return a code span for a table cell, in which `|` must be escaped even in code."""
    return _markdown(str(code(text)).replace("|", "\\|"))


def fenced(lines: Sequence[str], language: str) -> Markup:
    """Return a code block with a fence that none of its lines can close."""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return _markdown("\n".join([f"{fence}{language}", *lines, fence]))


def number(value: Decimal) -> str:
    """Format a number without trailing zeros."""
    return f"{value.normalize():f}" if value else "0"


def signed(value: Decimal, formatted: Any = number) -> str:
    """Format a difference: `+4`, `-4`, or `0`."""
    if not value:
        return "0"
    return f"+{formatted(abs(value))}" if value > 0 else f"-{formatted(abs(value))}"


def money(value: Decimal) -> str:
    """Format an amount of money. Amounts below 1,000 include cents."""
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def cost(value: Decimal | None) -> str:
    """Format an amount of money, or return `unknown`."""
    return "unknown" if value is None else money(value)


def price(value: Decimal | None) -> str:
    """Format the price of a small unit with up to four decimals, or return `unknown`."""
    return "unknown" if value is None else f"{round(value, 4).normalize():f}"


def gib(value: Decimal | None) -> str:
    """Format a storage size, or return `unknown`."""
    return "unknown" if value is None else amount(value * _KIB**3, "storage")


def hours(value: Decimal) -> str:
    """Format a duration in hours, or in days if it is at least two days."""
    days = value / 24
    return f"{number(round(days, 1))} days" if days >= _MIN_DAYS else f"{number(round(value, 1))} h"


def amount(value: Decimal, resource: str) -> str:
    """Format an amount of a resource: bytes as Ti, Gi or Mi, everything else as a number."""
    if not resource.endswith(("memory", "storage")):
        return number(value)
    for suffix, power in (("Ti", 4), ("Gi", 3), ("Mi", 2)):
        unit = Decimal(_KIB**power)
        # Show amounts below 10Ti in Gi, so that requested and remaining amounts are comparable.
        if abs(value) >= unit * (10 if suffix == "Ti" else 1):
            return f"{number((value / unit).quantize(Decimal('0.1')))}{suffix}"
    return number(value)


def _queue(row: PoolRow | CostRow) -> Markup:
    if not row.queue:
        return _markdown(f"(no queue, {plain(row.role)})")
    # Most pods in queues are training pods. Pods with another role are in separate rows.
    role = "" if row.role == "training" else f" ({plain(row.role)})"
    return _markdown(f"{cell(row.queue)}{role}")


def _gpu(row: PoolRow | CostRow) -> Markup:
    if row.resource in HOST_RESOURCES:
        unit = "cores" if row.resource == "cpu" else "GiB of memory"
        return _markdown(f"{unit}, {cell(row.product)}{' spot' if row.purchase == 'spot' else ''}")
    resource = "" if row.resource == NVIDIA_GPU else f" {cell(row.resource)}"
    spot = " spot" if row.purchase == "spot" else ""
    return _markdown(f"{cell(row.product)}{resource}{spot}")


def _markdown(text: str) -> Markup:
    """Mark text as Markdown, so that it is not escaped again."""
    return Markup(text)  # noqa: S704  every caller has escaped its input


def _escape(value: object) -> Markup:
    return value if isinstance(value, Markup) else plain(str(value))


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(money=money, price=price, total=total)
    environment.filters.update(
        code=code,
        cell=cell,
        sentence=sentence,
        fenced=fenced,
        number=number,
        signed=signed,
        money=money,
        cost=cost,
        price=price,
        gib=gib,
        hours=hours,
        amount=amount,
        duration=duration,
        durations=durations,
        queue=_queue,
        gpu=_gpu,
        percent=lambda share: f"{share * 100:.0f}%",
        html=lambda text: _markdown(html.escape(text)),
        markdown=_markdown,
    )
    return environment.get_template("comment.md.j2").module


_TEMPLATE: Final = _template()
