"""The report as one Markdown comment, for GitHub and GitLab alike."""

from collections.abc import Sequence

from gitops.preview import tables, text
from gitops.preview.report import Report

LONGEST = 65_000
"""GitHub takes 65,536 characters of a comment; GitLab takes a million."""

_HEADS = {
    "unchanged": "nothing changes",
    "blocked": "blocked",
    "failed": "the preview failed",
}
_COLUMNS = {
    "create": "created",
    "update": "changed",
    "replace": "replaced",
    "delete": "deleted",
    "kept": "kept in the cluster",
    "same": "unchanged",
}


def marker(kind: str, stack: str) -> str:
    """The hidden line by which a comment is found again."""
    return f"<!-- gpu-platform {kind} {stack} -->"


def render(report: Report, limit: int = LONGEST, details: str = "report.json") -> str:
    """The comment, at most `limit` characters long; the folded parts at its end are cut first."""
    drift = report.mode == "drift"
    body = [
        marker("drift" if drift else "preview", report.stack),
        f"## {'Drift' if drift else 'Preview'} of {text.code(report.stack)}: {_head(report)}",
        "",
        *_mode(report),
        *_counts(report),
        *_errors(report),
        *_stopped(report),
        *_first(report),
        *_policies(report),
        *tables.gpus(report),
        *tables.costs(report),
        *tables.limits(report.limits),
        *_unknown(report),
        *_warnings(report),
    ]
    whole = "\n".join([*body, *_resources(report), *_manifests(report)]) + "\n"
    if len(whole) <= limit:
        return whole
    note = f"\n… The rest does not fit into a comment: it is in {text.code(details)}.\n"
    return _cut(body, [_resources(report), *_each_manifest(report)], limit - len(note)) + note


def _cut(body: list[str], parts: Sequence[list[str]], limit: int) -> str:
    """As many whole parts as fit, and of the body as many whole lines."""
    result = "\n".join(body)
    if len(result) > limit:
        return result[:limit].rpartition("\n")[0]
    for part in parts:
        longer = "\n".join([result, *part])
        if len(longer) > limit:
            break
        result = longer
    return result


def _head(report: Report) -> str:
    mandatory = sum(violation.mandatory for violation in report.violations)
    if report.status == "blocked" and mandatory:
        return f"blocked by {_plural(mandatory, 'violation')}"
    if report.status == "changes":
        return _plural(len(report.resources), "change")
    return _HEADS[report.status]


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _mode(report: Report) -> list[str]:
    if report.mode == "live":
        return []
    if report.mode == "drift":
        return ["Compared with the cluster as it is. An update would do what is listed here.", ""]
    against = f"compared with {text.code(report.base)}" if report.base else "compared with nothing"
    return [
        f"Rendered without a cluster and without secrets, {against}. Built images have a stand-in "
        "for their digest, so that runs have other names here than in the cluster.",
        "",
    ]


def _counts(report: Report) -> list[str]:
    shown = {name: count for name, count in report.counts.items() if count or name != "kept"}
    return [
        *text.table([_COLUMNS[name] for name in shown], [[str(n) for n in shown.values()]], left=0),
        "",
    ]


def _errors(report: Report) -> list[str]:
    # What a violation makes the engine say is told by the violation.
    blocked = report.status == "blocked" and report.complete
    if report.status in ("unchanged", "changes") or blocked or not report.errors:
        return []
    lines = [line for error in report.errors for line in error.splitlines()]
    return ["### Errors", "", *text.fenced("text", lines), ""]


def _stopped(report: Report) -> list[str]:
    if report.complete:
        return []
    return [
        "The preview ended at an error. What it had not reached is missing here, so GPUs, cost and "
        "what is left of quotas are not told.",
        "",
    ]


def _first(report: Report) -> list[str]:
    if not report.impacts:
        return []
    return ["### Look at this first", "", *(f"- {text.sentence(i)}" for i in report.impacts), ""]


def _policies(report: Report) -> list[str]:
    if not report.violations and not report.exemptions:
        return []
    lines = ["### Policies", ""]
    for item in report.violations:
        level = "**mandatory**" if item.mandatory else "advisory"
        severity = f", {text.plain(item.severity)}" if item.severity else ""
        lines.append(f"- {level}{severity} {text.code(item.rule)}: {text.plain(item.message)}")
        if item.remedy:
            lines.append(f"  - Remedy: {text.plain(item.remedy)}")
    lines += [f"- exempted: {text.plain(message)}" for message in report.exemptions]
    return [*lines, ""]


def _unknown(report: Report) -> list[str]:
    if not report.unknown:
        return []
    lines = [
        f"- {text.code(item.title)}: {', '.join(text.code(path) for path in item.fields)}"
        for item in report.unknown
    ]
    return ["### Not known until the update", "", *lines, ""]


def _warnings(report: Report) -> list[str]:
    if not report.warnings:
        return []
    return ["### Notes", "", *(f"- {text.plain(warning)}" for warning in report.warnings), ""]


def _resources(report: Report) -> list[str]:
    if not report.resources:
        return []
    words = {"create": "+", "update": "~", "replace": "±", "delete": "-"}
    lines = [
        f"- {words[item.operation]} {text.code(item.title)}"
        + (" (stays in the cluster)" if item.kept_in_cluster else "")
        for item in report.resources
    ]
    return [*text.folded(f"Resources ({len(lines)})", lines), ""]


def _manifests(report: Report) -> list[str]:
    return [line for part in _each_manifest(report) for line in part]


def _each_manifest(report: Report) -> list[list[str]]:
    return [
        text.folded(f"Manifest of {item.title}", text.fenced("diff", item.lines))
        for item in report.differences
    ]
