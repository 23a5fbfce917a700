"""The tables of the comment."""

from collections.abc import Iterable, Sequence
from decimal import Decimal

from gitops.preview import text
from gitops.preview.report import CostRow, GpuRow, LimitRow, Report


def gpus(report: Report) -> list[str]:
    """GPUs by queue and product, now and after."""
    rows = report.gpus
    if not rows:
        return []
    now = sum((row.now for row in rows), Decimal(0))
    after = sum((row.after for row in rows), Decimal(0))
    body = [
        [_queue(row.queue, row.role), _gpu(row), text.number(row.now), _after(row), _delta(row)]
        for row in rows
    ]
    total = ["**all**", "", text.number(now), text.number(after), _change(after - now)]
    head = ["queue", "GPU", "now", "after", "change"]
    held = [
        f"Runs that stay in the cluster may hold {text.number(count)} more in "
        f"{text.code(queue) or 'no queue'} until they end."
        for queue, count in report.held_by_earlier_runs.items()
    ]
    lines = ["### GPUs", "", *text.table(head, [*body, total], left=2), ""]
    return [*lines, *held, ""] if held else lines


def _queue(queue: str, role: str) -> str:
    return text.cell(queue) if queue else f"(no queue, {text.plain(role)})"


def _gpu(row: GpuRow | CostRow) -> str:
    resource = "" if row.resource == "nvidia.com/gpu" else f" {text.cell(row.resource)}"
    return f"{text.cell(row.product)}{resource}" + (" spot" if row.purchase == "spot" else "")


def _after(row: GpuRow) -> str:
    most = text.number(row.after)
    return most if row.fewest_after == row.after else f"{text.number(row.fewest_after)} to {most}"


def _delta(row: GpuRow) -> str:
    return _change(row.after - row.now)


def _change(value: Decimal) -> str:
    return text.signed(value, text.number(abs(value)))


def costs(report: Report) -> list[str]:
    """Cost per hour and month, now, after and the difference."""
    rows = report.costs
    if not rows:
        return []
    known = [row for row in rows if row.price is not None]
    unknown = sorted({_gpu(row) for row in rows if row.price is None})
    lines = [f"### Cost of the GPUs in {text.plain(report.currency)}", ""]
    if known:
        sums = [_sum(known, field) for field in ("now_hour", "after_hour", "now_month")]
        month = _sum(known, "after_month")
        body = [
            ["per hour, all at work", *_money(sums[0], sums[1])],
            ["per month, as they are used", *_money(sums[2], month)],
        ]
        lines += [*text.table(["", "now", "after", "change"], body), ""]
        lines += text.folded("By queue and GPU", _cost_rows(known))
        lines.append("")
    if unknown:
        lines += [f"Not in the price table, and not counted: {', '.join(unknown)}.", ""]
    return lines


def _sum(rows: Iterable[CostRow], field: str) -> Decimal:
    return sum((getattr(row, field) for row in rows), Decimal(0))


def _money(now: Decimal, after: Decimal) -> list[str]:
    change = after - now
    return [text.money(now), text.money(after), text.signed(change, text.money(abs(change)))]


def _cost_rows(rows: Sequence[CostRow]) -> list[str]:
    body = [
        [
            _queue(row.queue, row.role),
            _gpu(row),
            text.money(row.price or Decimal(0)),
            f"{row.utilisation * 100:.0f}%",
            *_money(row.now_month, row.after_month),
        ]
        for row in rows
    ]
    head = ["queue", "GPU", "price per hour", "used", "month now", "month after", "change"]
    return text.table(head, body, left=2)


def limits(rows: Sequence[LimitRow]) -> list[str]:
    """What is left of quotas, queues and installed GPUs."""
    if not rows:
        return []
    body = [
        [
            text.plain(row.what),
            text.cell(row.resource),
            text.amount(row.resource, row.asked),
            text.amount(row.resource, row.allowed),
            f"**{text.amount(row.resource, row.left)}**"
            if row.left < 0
            else text.amount(row.resource, row.left),
        ]
        for row in rows
    ]
    head = ["limit", "resource", "asked for", "allowed", "left"]
    return ["### Quota and capacity after the update", "", *text.table(head, body, left=2), ""]
