"""GitLab's REST API (v4): notes on merge requests, and issues."""

from collections.abc import Iterator, Mapping
from typing import Any

from gitops.errors import GitopsError
from gitops.hosts.host import LABEL, Api, Note


class GitLab:
    """A project and perhaps one of its merge requests."""

    def __init__(self, environment: Mapping[str, str], number: int | None) -> None:
        token = environment.get("GITLAB_TOKEN")
        project = environment.get("CI_PROJECT_ID")
        if not token or not project:
            raise GitopsError(
                "GITLAB_TOKEN (a project token with `api`; CI_JOB_TOKEN may not write notes) and "
                "CI_PROJECT_ID must be set"
            )
        self._given = number or environment.get("CI_MERGE_REQUEST_IID")
        self._project = f"projects/{project}"
        url = environment.get("CI_API_V4_URL") or "https://gitlab.com/api/v4"
        self._api = Api(url, {"PRIVATE-TOKEN": token})

    def author(self) -> str:
        """The token's user."""
        return str(self._api.get("user")["username"])

    def comments(self) -> Iterator[Note]:
        """The notes on the merge request."""
        path = f"{self._merge_request()}/notes?per_page=100&order_by=created_at&sort=asc"
        return (_note(item, "id", "body") for item in self._api.pages(path))

    def add_comment(self, body: str) -> None:
        """Writes a new note."""
        self._api.write("POST", f"{self._merge_request()}/notes", {"body": body})

    def change_comment(self, number: int, body: str) -> None:
        """Writes a note anew."""
        self._api.write("PUT", f"{self._merge_request()}/notes/{number}", {"body": body})

    def issues(self) -> Iterator[Note]:
        """The open issues about drift."""
        path = f"{self._project}/issues?state=opened&labels={LABEL}&per_page=100"
        return (_note(item, "iid", "description") for item in self._api.pages(path))

    def add_issue(self, title: str, body: str) -> None:
        """Opens an issue."""
        issue = {"title": title, "description": body, "labels": LABEL}
        self._api.write("POST", f"{self._project}/issues", issue)

    def change_issue(self, number: int, title: str, body: str) -> None:
        """Writes an issue anew."""
        path = f"{self._project}/issues/{number}"
        self._api.write("PUT", path, {"title": title, "description": body})

    def close_issue(self, number: int) -> None:
        """Closes an issue."""
        self._api.write("PUT", f"{self._project}/issues/{number}", {"state_event": "close"})

    def _merge_request(self) -> str:
        if not self._given:
            raise GitopsError("this is no pipeline of a merge request: give its --number")
        return f"{self._project}/merge_requests/{self._given}"


def _note(item: Mapping[str, Any], key: str, text: str) -> Note:
    author = (item.get("author") or {}).get("username")
    return Note(int(item[key]), str(author), item.get(text) or "")
