"""`python -m gitops comment`: writes a report to a pull request, or to an issue about drift."""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gitops.errors import GitopsError

if TYPE_CHECKING:
    from gitops.hosts.host import Host

HELP = "write a report to the pull request (or to an issue), in place of the last one"
DESCRIPTION = """\
Writes the comment.md of a preview to the pull request at hand. The comment of the same stack that
is there already is written anew, so there is one comment a stack however often it runs.
"""
EPILOG = """\
examples:
  python -m gitops comment preview/comment.md
  python -m gitops comment preview/comment.md --host gitlab --number 12
  python -m gitops comment drift/comment.md --issue
  python -m gitops comment drift/comment.md --issue --close

environment:
  GitHub   GITHUB_TOKEN, GITHUB_REPOSITORY; GITHUB_API_URL and GITHUB_EVENT_PATH as Actions set them
  GitLab   GITLAB_TOKEN (a project token with `api`), CI_PROJECT_ID; CI_API_V4_URL and
           CI_MERGE_REQUEST_IID as pipelines set them
  A workflow on GitHub with a token of its own names the token's user in GITOPS_AUTHOR.

exit status: 0 when it is written, 1 when the host refuses.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the comment.md of a preview")
    parser.add_argument(
        "--host", choices=["github", "gitlab"], help="default: GitLab in its pipelines, else GitHub"
    )
    parser.add_argument(
        "--number", type=int, metavar="N", help="default: the pull request of this run"
    )
    parser.add_argument(
        "--issue", action="store_true", help="write an issue with the label `drift`"
    )
    parser.add_argument(
        "--close", action="store_true", help="with --issue: the drift is gone, close its issue"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    if options.close and not options.issue:
        raise GitopsError("--close is for --issue")
    try:
        body = options.file.read_text("utf-8")
    except OSError as error:
        raise GitopsError(f"{options.file}: {error.strerror}") from error
    from gitops.hosts import publishing

    host = _host(options, os.environ)
    if options.close:
        done = publishing.close_issue(host, body)
    elif options.issue:
        stack = publishing.marker_of(body).split()[-2]
        done = publishing.put_issue(host, f"The cluster differs from the stack {stack}", body)
    else:
        done = publishing.put_comment(host, body)
    sys.stderr.write(f"{'issue' if options.issue else 'comment'}: {done}\n")
    return 0


def _host(options: argparse.Namespace, environment: Mapping[str, str]) -> "Host":
    # httpx is needed by this command alone.
    if (options.host or ("gitlab" if "GITLAB_CI" in environment else "github")) == "gitlab":
        from gitops.hosts.gitlab import GitLab

        return GitLab(environment, options.number)
    from gitops.hosts.github import GitHub

    return GitHub(environment, options.number)
