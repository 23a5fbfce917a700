"""Servers that implement the parts of GitHub's and GitLab's APIs that the product uses."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

TOKEN = "token-of-the-test"
BOT = "report-bot"


@dataclass
class State:
    """State of a code host, and the requests that would send notifications."""

    notes: list[dict[str, Any]] = field(default_factory=list)
    issues: list[dict[str, Any]] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    page_size: int = 2
    url: str = ""
    answers: list[tuple[int, dict[str, str], str]] = field(default_factory=list)
    """Status, headers and text of the next responses, which replace the usual ones."""


class _Handler(BaseHTTPRequestHandler):
    """Handler for JSON requests and responses, with paginated lists (Link header)."""

    state: State
    author_key: tuple[str, str]
    number_key: str
    routes: ClassVar[list[tuple[str, str, str]]]

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PATCH(self) -> None:
        self._answer("PATCH")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        path = urlsplit(self.path)
        if self.state.answers:
            status, headers, text = self.state.answers.pop(0)
            return self._send(status, text, headers=headers)
        if not self.authorized():
            return self._send(401, {"message": "Bad credentials"})
        if method != "GET":
            self.state.writes.append(f"{method} {path.path}")
        for verb, pattern, name in self.routes:
            found = re.fullmatch(pattern, path.path)
            if verb == method and found:
                number = int(found["id"]) if "id" in found.groupdict() else 0
                return getattr(self, name)(body, number, parse_qs(path.query))
        return self._send(404, {"message": "Not Found"})

    def authorized(self) -> bool:
        raise NotImplementedError

    def _send(
        self, status: int, value: Any, link: str = "", headers: dict[str, str] | None = None
    ) -> None:
        data = value.encode() if headers is not None else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        if link:
            self.send_header("Link", link)
        self.end_headers()
        self.wfile.write(data)

    def _page(self, found: list[dict[str, Any]], query: dict[str, list[str]]) -> None:
        page, size = int(query.get("page", ["1"])[0]), self.state.page_size
        path = urlsplit(self.path).path
        link = f'<{self.state.url}{path}?page={page + 1}>; rel="next"'
        more = len(found) > page * size
        self._send(200, found[(page - 1) * size : page * size], link if more else "")

    def me(self, _: Any, __: int, ___: Any) -> None:
        self._send(200, {self.author_key[1]: BOT})

    def list_notes(self, _: Any, __: int, query: Any) -> None:
        self._page(self.state.notes, query)

    def add_note(self, body: Any, _: int, __: Any) -> None:
        user = {self.author_key[0]: {self.author_key[1]: BOT}}
        self.state.notes.append({"id": 100 + len(self.state.notes), "body": body["body"], **user})
        self._send(201, self.state.notes[-1])

    def change_note(self, body: Any, number: int, _: Any) -> None:
        (note,) = [note for note in self.state.notes if note["id"] == number]
        note["body"] = body["body"]
        self._send(200, note)

    def list_issues(self, _: Any, __: int, query: dict[str, list[str]]) -> None:
        is_open = [issue for issue in self.state.issues if issue["state"] == query["state"][0]]
        self._page(is_open, query)

    def add_issue(self, body: Any, _: int, __: Any) -> None:
        user = {self.author_key[0]: {self.author_key[1]: BOT}}
        state = "open" if self.number_key == "number" else "opened"
        number = {self.number_key: 1 + len(self.state.issues)}
        self.state.issues.append({**body, **number, **user, "state": state})
        self._send(201, self.state.issues[-1])

    def update_issue(self, body: Any, number: int, _: Any) -> None:
        (issue,) = [issue for issue in self.state.issues if issue[self.number_key] == number]
        if body.pop("state_event", None) == "close":
            body["state"] = "closed"
        issue.update(body)
        self._send(200, issue)


class _GitHub(_Handler):
    author_key, number_key = ("user", "login"), "number"
    routes: ClassVar = [
        ("GET", "/user", "me"),
        ("GET", "/repos/team/platform/issues/7/comments", "list_notes"),
        ("POST", "/repos/team/platform/issues/7/comments", "add_note"),
        ("PATCH", r"/repos/team/platform/issues/comments/(?P<id>\d+)", "change_note"),
        ("GET", "/repos/team/platform/issues", "list_issues"),
        ("POST", "/repos/team/platform/issues", "add_issue"),
        ("PATCH", r"/repos/team/platform/issues/(?P<id>\d+)", "update_issue"),
    ]

    def authorized(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"


class _GitLab(_Handler):
    author_key, number_key = ("author", "username"), "iid"
    routes: ClassVar = [
        ("GET", "/api/v4/user", "me"),
        ("GET", "/api/v4/projects/42/merge_requests/7/notes", "list_notes"),
        ("POST", "/api/v4/projects/42/merge_requests/7/notes", "add_note"),
        ("PUT", r"/api/v4/projects/42/merge_requests/7/notes/(?P<id>\d+)", "change_note"),
        ("GET", "/api/v4/projects/42/issues", "list_issues"),
        ("POST", "/api/v4/projects/42/issues", "add_issue"),
        ("PUT", r"/api/v4/projects/42/issues/(?P<id>\d+)", "update_issue"),
    ]

    def authorized(self) -> bool:
        return self.headers.get("PRIVATE-TOKEN") == TOKEN


@contextmanager
def serving(name: str) -> Iterator[tuple[State, dict[str, str]]]:
    """Run a server; yield its state and the environment variables that point to it."""
    state = State()
    base = _GitHub if name == "github" else _GitLab
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (base,), {"state": state}))
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    github = {
        "GITHUB_API_URL": state.url,
        "GITHUB_REPOSITORY": "team/platform",
        "GITHUB_TOKEN": TOKEN,
    }
    gitlab = {
        "CI_API_V4_URL": f"{state.url}/api/v4",
        "CI_PROJECT_ID": "42",
        "CI_MERGE_REQUEST_IID": "7",
        "GITLAB_TOKEN": TOKEN,
        "GITLAB_CI": "true",
    }
    try:
        yield state, github if name == "github" else gitlab
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
