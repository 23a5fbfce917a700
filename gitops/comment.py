"""`python -m gitops comment`: post a report to a pull request or an issue.

Each stack has one comment per pull request, one issue about its drift and one issue about its
preview. A comment or issue is identified by the marker in its first line and by its author, since
anybody can copy a marker.

`gh pr comment --edit-last` does not work here, because it edits the user's last comment, which may
be about another stack.
"""

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gitops.errors import GitopsError, UsageError

if TYPE_CHECKING:
    from gitops.hosts import Host, Note

HELP = "post a report to a pull request or an issue, replacing the previous report"
DESCRIPTION = """\
Post the comment.md of a preview, and the commit that was previewed, to the current pull request. An
existing comment about the same stack is replaced, so each stack has one comment. With --affected,
mark a comment as outdated if its stack is no longer affected.
"""
EPILOG = """\
examples:
  python -m gitops comment preview/comment.md
  python -m gitops comment preview/comment.md --host gitlab --number 12 --commit 0a1b2c3d
  python -m gitops comment --affected "$(python -m gitops changed --base origin/main)"
  python -m gitops comment drift/comment.md --issue
  python -m gitops comment drift/comment.md --issue --close
  python -m gitops comment preview/comment.md --issue

environment:
  GitHub   GITHUB_TOKEN, GITHUB_REPOSITORY; GITHUB_API_URL and GITHUB_EVENT_PATH (set by
           GitHub Actions)
  GitLab   GITLAB_TOKEN (a project token with the `api` scope), CI_PROJECT_ID; CI_API_V4_URL and
           CI_MERGE_REQUEST_IID (set by GitLab pipelines)
  If a GitHub workflow uses a custom token, set GITOPS_AUTHOR to the token's user.

exit status: 0 on success; 1 on an error, such as a rejection by the host; 64 if an argument is
invalid.
"""
Outcome = Literal["created", "updated", "unchanged", "closed", "nothing to close"]
_MARKER = re.compile(r"<!-- gpu-platform (?P<kind>preview|drift) (?P<stack>\S+) -->")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument(
        "file", type=Path, nargs="?", metavar="FILE", help="comment.md of a preview"
    )
    parser.add_argument(
        "--affected",
        type=_stacks,
        metavar="JSON",
        help="instead of FILE: the output of `gitops changed`; marks this account's comments about "
        "all other stacks as outdated",
    )
    parser.add_argument(
        "--commit",
        metavar="SHA",
        help="commit of the report; default: head of this workflow's pull request",
    )
    parser.add_argument(
        "--host",
        choices=["github", "gitlab"],
        help="default: gitlab in GitLab pipelines, otherwise github",
    )
    parser.add_argument(
        "--number",
        type=int,
        metavar="N",
        help="number of the pull request; default: the one that triggered this workflow",
    )
    parser.add_argument(
        "--issue",
        action="store_true",
        help="instead of a comment, create or update an issue with the `drift` label",
    )
    parser.add_argument(
        "--close",
        action="store_true",
        help="with --issue: close the stack's open issue, if there is one",
    )


def _stacks(text: str) -> list[str]:
    with contextlib.suppress(ValueError):
        stacks = json.loads(text)
        if isinstance(stacks, list) and all(isinstance(name, str) for name in stacks):
            return stacks
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a JSON list of stacks: use the output of `python -m gitops changed`"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    if options.close and not options.issue:
        raise UsageError("--close requires --issue")
    if (options.file is None) == (options.affected is None):
        raise UsageError("specify either the FILE of a report or --affected")
    if options.affected is not None:
        host = _host(options, os.environ)
        count = mark_outdated(host, options.affected, options.commit or host.commit())
        sys.stderr.write(f"outdated comments: {count}\n")
        return 0
    try:
        body = options.file.read_text("utf-8")
    except OSError as error:
        raise GitopsError(f"{options.file}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise GitopsError(f"{options.file} is not a report: it is not UTF-8") from None
    host = _host(options, os.environ)
    if options.close:
        done = close_issue(host, body)
    elif options.issue:
        done = put_issue(host, _title(body), body)
    else:
        done = put_comment(host, _with_commit(body, options.commit or host.commit()))
    sys.stderr.write(f"{'issue' if options.issue else 'comment'}: {done}\n")
    return 0


def _host(options: argparse.Namespace, environment: Mapping[str, str]) -> "Host":
    # Imported here, because only this command requires httpx.
    from gitops.hosts import GitHub, GitLab

    name = options.host or ("gitlab" if "GITLAB_CI" in environment else "github")
    return (GitLab if name == "gitlab" else GitHub)(environment, options.number)


def put_comment(host: "Host", body: str) -> Outcome:
    """Create the comment, or replace the existing one about the same stack."""
    comment = _own_note(host, host.comments(), _marker_of(body))
    if comment is None:
        host.add_comment(body)
        return "created"
    if _are_equal(comment.body, body):
        return "unchanged"
    host.update_comment(comment.number, body)
    return "updated"


def mark_outdated(host: "Host", affected: Sequence[str], commit: str | None) -> int:
    """Mark this account's comments as outdated if their stacks are no longer affected.

    These comments describe updates that will not happen. Return the number of marked comments.
    """
    outdated: list[tuple[int, str]] = []
    for note in host.comments():
        marker = note.body.partition("\n")[0].strip()
        marked = _MARKER.fullmatch(marker)
        if marked is None or marked["kind"] != "preview" or marked["stack"] in affected:
            continue
        headline = f"## Preview of `{marked['stack']}`: no longer affected"
        if headline not in note.body and note.author == host.author():
            outdated.append((note.number, _with_commit(f"{marker}\n{headline}\n", commit)))
    for number, body in outdated:
        host.update_comment(number, body)
    return len(outdated)


def _with_commit(body: str, commit: str | None) -> str:
    """Return a report with its commit below the headline."""
    if commit is None:
        return body
    lines = body.split("\n")
    headline = next((n for n, line in enumerate(lines) if line.startswith("## ")), 0)
    return "\n".join([*lines[: headline + 1], "", f"Commit {commit}.", *lines[headline + 1 :]])


def put_issue(host: "Host", title: str, body: str) -> Outcome:
    """Open an issue, or replace the open one about the same stack."""
    issue = _own_note(host, host.issues(), _marker_of(body))
    if issue is None:
        host.add_issue(title, body)
        return "created"
    if _are_equal(issue.body, body):
        return "unchanged"
    host.update_issue(issue.number, title, body)
    return "updated"


def close_issue(host: "Host", body: str) -> Outcome:
    """Close the open issue about the same stack, if there is one."""
    issue = _own_note(host, host.issues(), _marker_of(body))
    if issue is None:
        return "nothing to close"
    host.close_issue(issue.number)
    return "closed"


def _marker_of(body: str) -> str:
    first = body.partition("\n")[0].strip()
    if not _MARKER.fullmatch(first):
        raise GitopsError(
            f"the text begins with {first!r:.60} and is not a report: use the comment.md that "
            "`python -m gitops preview --out DIR` writes"
        )
    return first


def _title(body: str) -> str:
    """Return the title of an issue about drift, a failure, or merged but unapplied changes."""
    from gitops.preview.markdown import HEADLINES

    _, kind, stack = _marker_of(body).removeprefix("<!-- ").removesuffix(" -->").split()
    headline = next((line for line in body.splitlines() if line.startswith("## ")), "")
    if headline.endswith(HEADLINES["failed"]):
        failed = "drift check" if kind == "drift" else "preview"
        return f"The {failed} of stack {stack} failed"
    if kind == "drift":
        return f"The cluster differs from the state of stack {stack}"
    return f"Merged changes to stack {stack} have not been applied"


def _own_note(host: "Host", notes: Iterable["Note"], marker: str) -> "Note | None":
    """Return the comment or issue that has this marker and was written by the token's user."""
    marked = [note for note in notes if note.body.partition("\n")[0].strip() == marker]
    if not marked:
        return None
    author = host.author()
    return next((note for note in marked if note.author == author), None)


def _are_equal(one: str, other: str) -> bool:
    """Return whether two texts are equal except for trailing spaces and line endings.

    GitHub and GitLab may change these characters.
    """
    return [*map(str.rstrip, one.strip().splitlines())] == [
        *map(str.rstrip, other.strip().splitlines())
    ]
