"""GitHub's REST API (version 2022-11-28): comments on pull requests, and issues."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gitops.errors import GitopsError
from gitops.hosts.host import LABEL, Api, Note

_ACTIONS = "github-actions[bot]"
"""Who writes with the token that a workflow is given."""


class GitHub:
    """A repository and perhaps one of its pull requests."""

    def __init__(self, environment: Mapping[str, str], number: int | None) -> None:
        token = environment.get("GITHUB_TOKEN")
        repository = environment.get("GITHUB_REPOSITORY")
        if not token or not repository:
            raise GitopsError("GITHUB_TOKEN and GITHUB_REPOSITORY (owner/name) must be set")
        self._environment = environment
        self._number = number
        self._repository = f"repos/{repository}"
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        self._api = Api(environment.get("GITHUB_API_URL") or "https://api.github.com", headers)

    def author(self) -> str:
        """The bot of workflows inside of one, else the token's user."""
        if self._environment.get("GITHUB_ACTIONS") == "true":
            return self._environment.get("GITOPS_AUTHOR") or _ACTIONS
        return str(self._api.get("user")["login"])

    def comments(self) -> Iterator[Note]:
        """The comments on the pull request."""
        pages = self._api.pages(f"{self._repository}/issues/{self._pull()}/comments?per_page=100")
        return (_note(item, "id") for item in pages)

    def add_comment(self, body: str) -> None:
        """Writes a new comment."""
        path = f"{self._repository}/issues/{self._pull()}/comments"
        self._api.write("POST", path, {"body": body})

    def change_comment(self, number: int, body: str) -> None:
        """Writes a comment anew."""
        path = f"{self._repository}/issues/comments/{number}"
        self._api.write("PATCH", path, {"body": body})

    def issues(self) -> Iterator[Note]:
        """The open issues about drift."""
        path = f"{self._repository}/issues?state=open&labels={LABEL}&per_page=100"
        return (_note(item, "number") for item in self._api.pages(path))

    def add_issue(self, title: str, body: str) -> None:
        """Opens an issue."""
        issue = {"title": title, "body": body, "labels": [LABEL]}
        self._api.write("POST", f"{self._repository}/issues", issue)

    def change_issue(self, number: int, title: str, body: str) -> None:
        """Writes an issue anew."""
        path = f"{self._repository}/issues/{number}"
        self._api.write("PATCH", path, {"title": title, "body": body})

    def close_issue(self, number: int) -> None:
        """Closes an issue."""
        path = f"{self._repository}/issues/{number}"
        self._api.write("PATCH", path, {"state": "closed", "state_reason": "completed"})

    def _pull(self) -> int:
        if self._number is not None:
            return self._number
        event = self._environment.get("GITHUB_EVENT_PATH")
        if event:
            found = json.loads(Path(event).read_text("utf-8")).get("pull_request", {})
            if isinstance(number := found.get("number"), int):
                return number
        raise GitopsError("this is no run for a pull request: give its --number")


def _note(item: Mapping[str, Any], key: str) -> Note:
    return Note(int(item[key]), str((item.get("user") or {}).get("login")), item.get("body") or "")
