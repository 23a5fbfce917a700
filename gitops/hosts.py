"""Clients for comments and issues on GitHub and GitLab."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx

from gitops.errors import GitopsError

LABEL = "drift"
_CONNECTION_RETRIES = 3
_TIMEOUT_SECONDS = 30.0
_RETRY_DELAYS = (1.0, 4.0)
"""Delays (s) before the second and third attempts, unless the response has a Retry-After header."""
_MAX_DELAY = 60.0
_MAX_REDIRECTS = 3
_ACTIONS_BOT = "github-actions[bot]"
"""Author of comments and issues written with a workflow's token."""


@dataclass(frozen=True)
class Note:
    """A comment or an issue, with its number on the host, its author and its text."""

    number: int
    author: str
    body: str


class GitHub:
    """A repository and, optionally, one of its pull requests (REST API version 2022-11-28)."""

    def __init__(self, environment: Mapping[str, str], number: int | None) -> None:
        token = _token(environment, "GITHUB_TOKEN")
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
        self._api = _Api(environment.get("GITHUB_API_URL") or "https://api.github.com", headers)

    def author(self) -> str:
        """Return the account that writes with this token: a bot or the token's owner."""
        if self._environment.get("GITHUB_ACTIONS") == "true":
            return self._environment.get("GITOPS_AUTHOR") or _ACTIONS_BOT
        return str(self._api.get("user")["login"])

    def commit(self) -> str | None:
        """Return the head commit of the pull request that triggered the workflow, or None."""
        # GITHUB_SHA is a temporary merge commit that readers cannot look up.
        head = self._triggering_pull_request().get("head")
        sha = head.get("sha") if isinstance(head, dict) else None
        return sha if isinstance(sha, str) else None

    def comments(self) -> Iterator[Note]:
        """Yield the comments on the pull request."""
        pages = self._api.pages(
            f"{self._repository}/issues/{self._pull_number()}/comments?per_page=100"
        )
        return (self._note(item, "id") for item in pages)

    def add_comment(self, body: str) -> None:
        """Create a comment."""
        path = f"{self._repository}/issues/{self._pull_number()}/comments"
        self._api.write("POST", path, {"body": body})

    def update_comment(self, number: int, body: str) -> None:
        """Replace the text of a comment."""
        path = f"{self._repository}/issues/comments/{number}"
        self._api.write("PATCH", path, {"body": body})

    def issues(self) -> Iterator[Note]:
        """Yield the open issues with the `drift` label."""
        path = f"{self._repository}/issues?state=open&labels={LABEL}&per_page=100"
        return (self._note(item, "number") for item in self._api.pages(path))

    def add_issue(self, title: str, body: str) -> None:
        """Open an issue."""
        issue = {"title": title, "body": body, "labels": [LABEL]}
        self._api.write("POST", f"{self._repository}/issues", issue)

    def update_issue(self, number: int, title: str, body: str) -> None:
        """Replace the title and the text of an issue."""
        path = f"{self._repository}/issues/{number}"
        self._api.write("PATCH", path, {"title": title, "body": body})

    def close_issue(self, number: int) -> None:
        """Close an issue."""
        path = f"{self._repository}/issues/{number}"
        self._api.write("PATCH", path, {"state": "closed", "state_reason": "completed"})

    def _pull_number(self) -> int:
        if self._number is not None:
            return self._number
        number = self._triggering_pull_request().get("number")
        if isinstance(number, int):
            return number
        raise GitopsError("this workflow was not triggered by a pull request: set --number")

    def _triggering_pull_request(self) -> dict[str, Any]:
        """Return the pull request that triggered the workflow; empty if there is none."""
        path = self._environment.get("GITHUB_EVENT_PATH")
        return _pull_request(Path(path)) if path else {}

    @staticmethod
    def _note(item: Mapping[str, Any], key: str) -> Note:
        author = (item.get("user") or {}).get("login")
        return Note(_integer(item, key), str(author), item.get("body") or "")


class GitLab:
    """A project and, optionally, one of its merge requests (REST API v4)."""

    def __init__(self, environment: Mapping[str, str], number: int | None) -> None:
        token = _token(environment, "GITLAB_TOKEN")
        project = environment.get("CI_PROJECT_ID")
        if not token or not project:
            raise GitopsError(
                "GITLAB_TOKEN (a project token with the `api` scope; CI_JOB_TOKEN cannot write "
                "notes) and CI_PROJECT_ID must be set"
            )
        self._environment = environment
        self._number = number or environment.get("CI_MERGE_REQUEST_IID")
        self._project = f"projects/{project}"
        url = environment.get("CI_API_V4_URL") or "https://gitlab.com/api/v4"
        self._api = _Api(url, {"PRIVATE-TOKEN": token})

    def author(self) -> str:
        """Return the token's user."""
        return str(self._api.get("user")["username"])

    def commit(self) -> str | None:
        """Return the commit of the merge request or of the pipeline; None outside pipelines."""
        # In merged results pipelines, CI_COMMIT_SHA is a merge commit.
        source = self._environment.get("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA")
        return source or self._environment.get("CI_COMMIT_SHA") or None

    def comments(self) -> Iterator[Note]:
        """Yield the notes on the merge request."""
        path = f"{self._merge_request()}/notes?per_page=100&order_by=created_at&sort=asc"
        return (self._note(item, "id", "body") for item in self._api.pages(path))

    def add_comment(self, body: str) -> None:
        """Create a note."""
        self._api.write("POST", f"{self._merge_request()}/notes", {"body": body})

    def update_comment(self, number: int, body: str) -> None:
        """Replace the text of a note."""
        self._api.write("PUT", f"{self._merge_request()}/notes/{number}", {"body": body})

    def issues(self) -> Iterator[Note]:
        """Yield the open issues with the `drift` label."""
        path = f"{self._project}/issues?state=opened&labels={LABEL}&per_page=100"
        return (self._note(item, "iid", "description") for item in self._api.pages(path))

    def add_issue(self, title: str, body: str) -> None:
        """Open an issue."""
        issue = {"title": title, "description": body, "labels": LABEL}
        self._api.write("POST", f"{self._project}/issues", issue)

    def update_issue(self, number: int, title: str, body: str) -> None:
        """Replace the title and the text of an issue."""
        path = f"{self._project}/issues/{number}"
        self._api.write("PUT", path, {"title": title, "description": body})

    def close_issue(self, number: int) -> None:
        """Close an issue."""
        self._api.write("PUT", f"{self._project}/issues/{number}", {"state_event": "close"})

    def _merge_request(self) -> str:
        if not self._number:
            raise GitopsError("this pipeline was not triggered by a merge request: set --number")
        return f"{self._project}/merge_requests/{self._number}"

    @staticmethod
    def _note(item: Mapping[str, Any], key: str, text: str) -> Note:
        author = (item.get("author") or {}).get("username")
        return Note(_integer(item, key), str(author), item.get(text) or "")


Host = GitHub | GitLab


class _Api:
    """Client for a JSON REST API. Errors contain the request and the response, but no tokens."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._client = httpx.Client(
            base_url=url.rstrip("/") + "/",
            headers=dict(headers),
            timeout=_TIMEOUT_SECONDS,
            transport=_transport(httpx.URL(url)),
        )

    def get(self, path: str) -> Any:
        return _json(self._send("GET", path), path)

    def pages(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield every entry of a paginated list, following the Link header (RFC 8288)."""
        next_page: str | None = path
        while next_page is not None:
            response = self._send("GET", next_page)
            page = _json(response, path)
            if not isinstance(page, list) or not all(isinstance(item, dict) for item in page):
                raise GitopsError(f"GET {path} returned {page!r:.80} instead of a list")
            yield from page
            next_page = response.links.get("next", {}).get("url")
            if next_page is not None and not self._may_receive_token(httpx.URL(next_page)):
                raise GitopsError(f"GET {path}: the next page has another origin ({next_page})")

    def write(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        self._send(method, path, body)

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        response = self._request(method, path, body)
        for wait in _RETRY_DELAYS:
            if not _is_temporary(response, method):
                break
            time.sleep(min(_retry_after(response) or wait, _MAX_DELAY))
            response = self._request(method, path, body)
        if response.is_success:
            return response
        raise GitopsError(
            f"{method} {path} returned {response.status_code}: "
            f"{_message(response)}{_hint(response)}"
        )

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        """Send a request, and follow the redirects of renamed repositories."""
        try:
            response = self._client.request(method, path, json=body)
            for _ in range(_MAX_REDIRECTS):
                # If httpx followed redirects, it would repeat the request as a GET and send
                # GitLab's token to any host.
                target = response.next_request
                if target is None or not self._may_receive_token(target.url):
                    break
                response = self._client.request(method, target.url, json=body)
        except httpx.HTTPError as error:
            raise GitopsError(f"{method} {path} failed: {type(error).__name__}: {error}") from error
        return response

    def _may_receive_token(self, url: httpx.URL) -> bool:
        """Return whether a URL has the API's origin. HTTPS is also allowed if the API uses HTTP."""
        api = self._client.base_url
        return url.host == api.host and (
            (url.scheme, url.port) == (api.scheme, api.port)
            or (url.scheme, api.scheme) == ("https", "http")
        )


def _transport(url: httpx.URL) -> httpx.HTTPTransport:
    """Return a transport that uses the proxy that the environment configures for a URL.

    With a custom transport, httpx ignores the environment. Without one, it rejects IPv6 networks in
    NO_PROXY.
    """
    proxies = {} if proxy_bypass(url.host) else getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy is not None and "://" not in proxy:
        proxy = f"http://{proxy}"
    try:
        return httpx.HTTPTransport(retries=_CONNECTION_RETRIES, proxy=proxy)
    except (ValueError, ImportError, httpx.InvalidURL) as error:
        raise GitopsError(
            "the proxy in HTTPS_PROXY, HTTP_PROXY or ALL_PROXY cannot be used; write an http:// or "
            f"https:// URL: {error}"
        ) from error


def _token(environment: Mapping[str, str], name: str) -> str:
    token = environment.get(name, "").strip()
    if not token.isascii() or any(not char.isprintable() or char.isspace() for char in token):
        raise GitopsError(
            f"{name} contains characters that are not allowed in a token; store only the token"
        )
    return token


def _pull_request(event: Path) -> dict[str, Any]:
    """Return the pull request in a GitHub event; empty if there is none."""
    try:
        content = json.loads(event.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise GitopsError(f"GITHUB_EVENT_PATH ({event}) cannot be read: {error}") from error
    request = content.get("pull_request") if isinstance(content, dict) else None
    return request if isinstance(request, dict) else {}


def _integer(item: Mapping[str, Any], key: str) -> int:
    if not isinstance(item.get(key), int):
        raise GitopsError(f"the host returned an entry without {key}: {str(item)[:80]}")
    return int(item[key])


def _json(response: httpx.Response, path: str) -> Any:
    try:
        return response.json()
    except ValueError:
        kind = response.headers.get("Content-Type", "a response without a Content-Type")
        raise GitopsError(
            f"GET {path} returned {kind} instead of JSON: the API URL may be wrong"
        ) from None


def _is_temporary(response: httpx.Response, method: str) -> bool:
    """Return whether a retry may succeed and cannot write anything twice."""
    if response.status_code == 403:
        return response.headers.get("Retry-After") is not None
    return response.status_code in (429, 503) or (response.status_code >= 500 and method != "POST")


def _retry_after(response: httpx.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else None


def _message(response: httpx.Response) -> str:
    try:
        content = response.json()
    except ValueError:
        return response.text[:200]
    if isinstance(content, dict):
        return str(content.get("message") or content.get("error") or content)[:200]
    return str(content)[:200]


def _hint(response: httpx.Response) -> str:
    # GitHub may report a secondary rate limit only in the message.
    limited = (
        response.headers.get("X-RateLimit-Remaining") == "0"
        or "Retry-After" in response.headers
        or "rate limit" in _message(response)
    )
    if response.status_code == 429 or (response.status_code == 403 and limited):
        return " (the host's rate limit is exceeded; rerun the job later)"
    if response.status_code in (401, 403):
        return (
            " (the token lacks a permission: GitHub jobs need `pull-requests: write` for comments "
            "and `issues: write` for issues; GitLab jobs need a project token with the `api` scope)"
        )
    return ""
