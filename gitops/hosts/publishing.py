"""Puts a report where reviewers see it: one comment or issue, written anew in place."""

import re
from collections.abc import Iterable
from typing import Literal

from gitops.errors import GitopsError
from gitops.hosts.host import Host, Note

Done = Literal["created", "updated", "unchanged", "closed", "nothing to close"]
_MARKER = re.compile(r"<!-- gpu-platform (preview|drift) \S+ -->")


def put_comment(host: Host, body: str) -> Done:
    """Creates the comment, or updates the one that was written for the same stack."""
    found = _own(host, host.comments(), marker_of(body))
    if found is None:
        host.add_comment(body)
        return "created"
    if _same(found.body, body):
        return "unchanged"
    host.change_comment(found.number, body)
    return "updated"


def put_issue(host: Host, title: str, body: str) -> Done:
    """Opens an issue, or updates the open one about the same stack."""
    found = _own(host, host.issues(), marker_of(body))
    if found is None:
        host.add_issue(title, body)
        return "created"
    if _same(found.body, body):
        return "unchanged"
    host.change_issue(found.number, title, body)
    return "updated"


def close_issue(host: Host, body: str) -> Done:
    """Closes the open issue about the same stack, where there is one."""
    found = _own(host, host.issues(), marker_of(body))
    if found is None:
        return "nothing to close"
    host.close_issue(found.number)
    return "closed"


def marker_of(body: str) -> str:
    """The first line of a report; raises GitopsError where it is no report."""
    first = body.partition("\n")[0].strip()
    if not _MARKER.fullmatch(first):
        raise GitopsError(
            f"the text begins with {first!r:.60} and is no report: give the comment.md that "
            "`python -m gitops preview --out DIR` writes"
        )
    return first


def _own(host: Host, notes: Iterable[Note], marker: str) -> Note | None:
    """The note that begins with the marker and that we have written: anybody may copy a marker."""
    marked = [note for note in notes if note.body.partition("\n")[0].strip() == marker]
    if not marked:
        return None
    author = host.author()
    return next((note for note in marked if note.author == author), None)


def _same(one: str, other: str) -> bool:
    """Hosts trim texts and write line ends their way."""
    return [*map(str.rstrip, one.strip().splitlines())] == [
        *map(str.rstrip, other.strip().splitlines())
    ]
