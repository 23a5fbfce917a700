"""What the commands need of a code host, and the one way in which they speak to it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from gitops.errors import GitopsError

LABEL = "drift"
_CONNECTION_ATTEMPTS = 3
_SECONDS = 30.0


@dataclass(frozen=True)
class Note:
    """A comment or an issue: its number at the host, who wrote it, and what it says."""

    number: int
    author: str
    body: str


class Host(Protocol):
    """Comments on one pull request, and issues of the repository."""

    def author(self) -> str:
        """The name under which the token writes."""

    def comments(self) -> Iterator[Note]:
        """The comments on the pull request."""

    def add_comment(self, body: str) -> None:
        """Writes a new comment."""

    def change_comment(self, number: int, body: str) -> None:
        """Writes a comment anew."""

    def issues(self) -> Iterator[Note]:
        """The open issues about drift."""

    def add_issue(self, title: str, body: str) -> None:
        """Opens an issue."""

    def change_issue(self, number: int, title: str, body: str) -> None:
        """Writes an issue anew."""

    def close_issue(self, number: int) -> None:
        """Closes an issue."""


class Api:
    """A REST API with JSON. Errors say what was asked for and what was answered, no tokens."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._client = httpx.Client(
            base_url=url.rstrip("/") + "/",
            headers=dict(headers),
            timeout=_SECONDS,
            transport=httpx.HTTPTransport(retries=_CONNECTION_ATTEMPTS),
        )

    def get(self, path: str) -> Any:
        """The answer to a GET, as plain data."""
        return self._send("GET", path).json()

    def pages(self, path: str) -> Iterator[dict[str, Any]]:
        """Every entry of a list that comes in pages, by the Link header (RFC 8288)."""
        following: str | None = path
        while following is not None:
            answer = self._send("GET", following)
            found = answer.json()
            if not isinstance(found, list):
                raise GitopsError(f"GET {path} answered {found!r:.80}, and not a list")
            yield from found
            following = answer.links.get("next", {}).get("url")
            if following is not None and httpx.URL(following).host != self._client.base_url.host:
                raise GitopsError(f"GET {path} goes on at another host, {following}: not followed")

    def write(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        """Sends a POST, PATCH or PUT."""
        self._send(method, path, body)

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        try:
            answer = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise GitopsError(f"{method} {path} failed: {error}") from error
        if answer.is_success:
            return answer
        raise GitopsError(
            f"{method} {path} answered {answer.status_code}: {_message(answer)}{_hint(answer)}"
        )


def _message(answer: httpx.Response) -> str:
    try:
        found = answer.json()
    except ValueError:
        return answer.text[:200]
    if isinstance(found, dict):
        return str(found.get("message") or found.get("error") or found)[:200]
    return str(found)[:200]


def _hint(answer: httpx.Response) -> str:
    if answer.status_code in (401, 403):
        return (
            " (the token may not: a job needs `pull-requests: write` for comments and "
            "`issues: write` for issues on GitHub, a project token with `api` on GitLab)"
        )
    return ""
