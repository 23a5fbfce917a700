import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gitops.__main__ import main
from gitops.hosts import _Api
from gitops.preview.markdown import marker
from tests.gitops.host_servers import BOT, TOKEN, State, serving

HOST_VARIABLES = (
    *("GITHUB_ACTIONS", "GITHUB_API_URL", "GITHUB_EVENT_PATH", "GITHUB_REPOSITORY"),
    *("GITHUB_TOKEN", "GITLAB_CI", "GITLAB_TOKEN", "CI_API_V4_URL", "CI_PROJECT_ID"),
    *("CI_MERGE_REQUEST_IID", "GITOPS_AUTHOR", "CI_COMMIT_SHA"),
    *("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA",),
)


@pytest.fixture(params=["github", "gitlab"])
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    """Run a code host, and set the environment variables that point to it."""
    for name in HOST_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with serving(request.param) as (state, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield state


def report(folder: Path, text: str, kind: str = "preview", stack: str = "prod") -> str:
    file = folder / f"{kind}.md"
    file.write_text(f"{marker(kind, stack)}\n{text}\n")
    return str(file)


def comment(*arguments: str) -> int:
    return main(["comment", "--number", "7", *arguments])


def test_a_second_run_updates_the_same_comment(host: State, tmp_path: Path) -> None:
    assert comment(report(tmp_path, "first")) == 0
    assert comment(report(tmp_path, "second")) == 0
    assert [note["body"].splitlines()[-1] for note in host.notes] == ["second"]


def test_unchanged_report_is_not_sent_again(host: State, tmp_path: Path) -> None:
    comment(report(tmp_path, "same"))
    # Hosts trim the text, and some change line endings.
    host.notes[0]["body"] = host.notes[0]["body"].strip().replace("\n", "\r\n")
    host.writes.clear()
    assert comment(report(tmp_path, "same")) == 0
    assert host.writes == []


def test_each_stack_has_a_separate_comment(host: State, tmp_path: Path) -> None:
    comment(report(tmp_path, "a", stack="prod"))
    comment(report(tmp_path, "b", stack="dev"))
    assert len(host.notes) == 2


def test_the_comment_is_found_on_a_later_page(host: State, tmp_path: Path) -> None:
    someone = {"user": {"login": "someone"}, "author": {"username": "someone"}}
    host.notes += [{"id": n, "body": f"remark {n}", **someone} for n in range(5)]
    comment(report(tmp_path, "first"))
    comment(report(tmp_path, "second"))
    assert len(host.notes) == 6
    assert host.notes[-1]["body"].endswith("second\n")


def test_comment_by_another_author_is_not_changed(host: State, tmp_path: Path) -> None:
    someone = {"user": {"login": "someone"}, "author": {"username": "someone"}}
    forged = f"{marker('preview', 'prod')}\nnothing to see"
    host.notes.append({"id": 1, "body": forged, **someone})
    comment(report(tmp_path, "ours"))
    assert [note["body"] == forged for note in host.notes] == [True, False]


def test_a_comment_states_the_commit_of_the_pull_request(
    host: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 7, "head": {"sha": "0a1b2c3d"}}}))
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(event))
    monkeypatch.setenv("CI_COMMIT_SHA", "a merge with the target")
    monkeypatch.setenv("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA", "0a1b2c3d")
    assert main(["comment", report(tmp_path, "## Preview of `prod`: 1 change\n\ntext")]) == 0
    lines = host.notes[0]["body"].splitlines()
    assert lines[:4] == [marker("preview", "prod"), "## Preview of `prod`: 1 change", "", lines[3]]
    assert lines[3] == "Commit 0a1b2c3d."
    assert lines[-1] == "text"


def test_comments_about_stacks_that_are_no_longer_affected_are_marked(
    host: State, tmp_path: Path
) -> None:
    someone = {"user": {"login": "someone"}, "author": {"username": "someone"}}
    forged = f"{marker('preview', 'dev')}\n## Preview of `dev`: 1 change"
    host.notes.append({"id": 1, "body": forged, **someone})
    for stack in ("staging", "prod"):
        comment(report(tmp_path, f"## Preview of `{stack}`: 1 change", stack=stack))
    assert comment("--affected", '["prod"]', "--commit", "0a1b2c3d") == 0
    staging = host.notes[1]["body"]
    assert staging.startswith(
        f"{marker('preview', 'staging')}\n## Preview of `staging`: no longer affected"
    )
    assert "Commit 0a1b2c3d." in staging
    assert host.notes[0]["body"] == forged
    assert "1 change" in host.notes[2]["body"]
    host.writes.clear()
    assert comment("--affected", '["prod"]', "--commit", "4e5f6a7b") == 0
    assert host.writes == []
    comment(report(tmp_path, "## Preview of `staging`: 2 changes", stack="staging"))
    assert "2 changes" in host.notes[1]["body"]
    assert len(host.notes) == 3


def test_invalid_list_of_affected_stacks_is_rejected(
    host: State, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in ("prod", "{}", "[1]"):
        with pytest.raises(SystemExit):
            comment("--affected", wrong)
        expected = f"argument --affected: {wrong!r} is not a JSON list of stacks: use the output of"
        assert expected in capsys.readouterr().err
    assert comment() == 64
    assert comment(report(tmp_path, "x"), "--affected", "[]") == 64
    assert host.writes == []


def test_drift_opens_updates_and_closes_one_issue(host: State, tmp_path: Path) -> None:
    file = report(tmp_path, "differs", kind="drift")
    assert main(["comment", file, "--issue"]) == 0
    assert main(["comment", report(tmp_path, "differs more", kind="drift"), "--issue"]) == 0
    (issue,) = host.issues
    assert "prod" in issue["title"]
    assert "differs more" in json.dumps(issue)
    assert main(["comment", file, "--issue", "--close"]) == 0
    assert issue["state"] == "closed"
    assert main(["comment", file, "--issue", "--close"]) == 0
    assert main(["comment", file, "--issue"]) == 0
    assert len(host.issues) == 2


@pytest.mark.parametrize(
    ("kind", "headline", "title"),
    [
        ("drift", "2 changes", "The cluster differs from the state of stack prod"),
        ("drift", "the preview failed", "The drift check of stack prod failed"),
        ("preview", "2 changes", "Merged changes to stack prod have not been applied"),
        ("preview", "blocked", "Merged changes to stack prod have not been applied"),
        ("preview", "the preview failed", "The preview of stack prod failed"),
    ],
)
def test_an_issue_has_the_title_of_its_report(
    host: State, tmp_path: Path, kind: str, headline: str, title: str
) -> None:
    file = report(tmp_path, f"## {kind.title()} of `prod`: {headline}", kind=kind)
    assert main(["comment", file, "--issue"]) == 0
    assert [issue["title"] for issue in host.issues] == [title]


def test_drift_and_unapplied_changes_are_separate_issues(host: State, tmp_path: Path) -> None:
    drift, preview = (report(tmp_path, "differs", kind=kind) for kind in ("drift", "preview"))
    assert main(["comment", drift, "--issue"]) == main(["comment", preview, "--issue"]) == 0
    assert main(["comment", drift, "--issue", "--close"]) == 0
    assert [issue["state"] == "closed" for issue in host.issues] == [True, False]


def test_error_for_a_rejected_request_names_the_permission_but_not_the_token(
    host: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "wrong-token")
    monkeypatch.setenv("GITLAB_TOKEN", "wrong-token")
    assert comment(report(tmp_path, "x")) == 1
    error = capsys.readouterr().err
    assert "returned 401: Bad credentials" in error
    assert "pull-requests: write" in error
    assert "wrong-token" not in error
    assert TOKEN not in error


def test_an_invalid_report_is_not_published(
    host: State, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.md"
    file.write_text("hello")
    assert comment(str(file)) == 1
    assert "is not a report" in capsys.readouterr().err
    assert comment(str(tmp_path / "absent.md")) == 1
    assert host.writes == []


def test_workflow_run_provides_the_number_and_the_author(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 7}}))
    with serving("github") as (state, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("GITLAB_CI", raising=False)
        monkeypatch.setenv("GITHUB_EVENT_PATH", str(event))
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        monkeypatch.setenv("GITOPS_AUTHOR", BOT)
        assert main(["comment", report(tmp_path, "first")]) == 0
        assert main(["comment", report(tmp_path, "second")]) == 0
        assert len(state.notes) == 1


def test_white_space_around_a_token_is_ignored(
    host: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GITHUB_TOKEN", "GITLAB_TOKEN"):
        monkeypatch.setenv(name, f"{TOKEN}\n")
    assert comment(report(tmp_path, "x")) == 0


def test_error_for_a_missing_token_names_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in HOST_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert comment(report(tmp_path, "x")) == 1
    assert "GITHUB_TOKEN and GITHUB_REPOSITORY" in capsys.readouterr().err
    assert comment(report(tmp_path, "x"), "--host", "gitlab") == 1
    assert "GITLAB_TOKEN" in capsys.readouterr().err


@pytest.mark.parametrize("status", [429, 502, 503])
def test_temporary_failures_are_retried(host: State, tmp_path: Path, status: int) -> None:
    host.answers = [
        (status, {"Retry-After": "0"}, "later"),
        (status, {"Retry-After": "0"}, "later"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gitops.hosts._RETRY_DELAYS", (0.0, 0.0))
        assert comment(report(tmp_path, "text")) == 0
    assert len(host.notes) == 1


def test_the_host_is_reached_through_a_proxy(
    host: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_API_URL", "http://git.invalid")
    monkeypatch.setenv("CI_API_V4_URL", "http://git.invalid/api/v4")
    monkeypatch.setenv("http_proxy", host.url.removeprefix("http://"))
    monkeypatch.setenv("no_proxy", "")
    assert comment(report(tmp_path, "text")) == 0
    assert len(host.notes) == 1


@pytest.mark.parametrize(
    "proxy", ["socks5://127.0.0.1:1", "ftp://proxy.example.com", "http://[::1"]
)
def test_an_unusable_proxy_is_reported_without_a_traceback(
    proxy: str, host: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("all_proxy", proxy)
    monkeypatch.setenv("no_proxy", "")
    assert comment(report(tmp_path, "text")) == 1
    assert "ALL_PROXY cannot be used" in capsys.readouterr().err


def test_hosts_in_no_proxy_are_reached_directly(
    host: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "fd00::/8,[::1],127.0.0.1")
    assert comment(report(tmp_path, "text")) == 0


def test_redirects_are_followed_only_to_the_same_origin(
    host: State, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = "/api/v4/projects/42/merge_requests/7/notes" if "api/v4" in host_url() else ""
    target = f"{host.url}{prefix or '/repos/team/platform/issues/7/comments'}"
    host.answers = [(301, {"Location": target}, "")] * 2
    assert comment(report(tmp_path, "text")) == 0
    assert len(host.notes) == 1
    for location in ("http://localhost.invalid/x", "http://127.0.0.1:1/x"):
        host.answers = [(301, {"Location": location}, "moved")]
        assert comment(report(tmp_path, "text")) == 1
        assert "returned 301: moved" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "trusted"),
    [
        ("https://git.example.com/page/2", True),
        ("https://git.example.com:443/page/2", True),
        ("https://git.example.com:8443/page/2", False),
        ("http://git.example.com/page/2", False),
        ("https://other.example.com/page/2", False),
    ],
)
def test_the_token_is_sent_only_to_the_origin_of_the_api(url: str, trusted: bool) -> None:
    api = _Api("https://git.example.com/api/v4", {})
    assert api._may_receive_token(httpx.URL(url)) is trusted


def test_http_may_be_redirected_to_https() -> None:
    api = _Api("http://git.example.com/api/v4", {})
    assert api._may_receive_token(httpx.URL("https://git.example.com/api/v4/x"))


def host_url() -> str:
    return os.environ.get("CI_API_V4_URL", "")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((200, {"Content-Type": "text/html"}, "<html>"), "text/html instead of JSON"),
        ((200, {"Content-Type": "application/json"}, '[{"body": "x"}]'), "without i"),
        ((200, {"Content-Type": "application/json"}, "[1]"), "instead of a list"),
        ((403, {"X-RateLimit-Remaining": "0"}, "{}"), "rate limit"),
        ((403, {}, '{"message": "exceeded a secondary rate limit"}'), "rerun the job later"),
    ],
)
def test_unexpected_response_is_reported_without_a_traceback(
    answer: tuple[int, dict[str, str], str],
    expected: str,
    host: State,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    host.answers = [answer]
    assert comment(report(tmp_path, "text")) == 1
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("token", ["abc\ndef", "abc def", "abcé"])
def test_an_invalid_token_is_not_printed(
    token: str, host: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name in ("GITHUB_TOKEN", "GITLAB_TOKEN"):
        monkeypatch.setenv(name, token)
    assert comment(report(tmp_path, "text")) == 1
    shown = capsys.readouterr().err
    assert "contains characters that are not allowed in a token" in shown
    assert "abc" not in shown


@pytest.mark.parametrize(
    "event",
    [None, "{", "[]", '{"pull_request": null}', "é".encode("latin-1"), "[" * 10**5],
    ids=["missing", "cut", "list", "null", "latin-1", "brackets"],
)
def test_invalid_event_file_is_reported_without_a_traceback(
    event: str | bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    file = tmp_path / "event.json"
    if event is not None:
        file.write_bytes(event.encode() if isinstance(event, str) else event)
    for name in HOST_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in (("TOKEN", "x"), ("REPOSITORY", "a/b"), ("EVENT_PATH", str(file))):
        monkeypatch.setenv(f"GITHUB_{name}", value)
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:1")
    assert main(["comment", report(tmp_path, "text")]) == 1
    assert "error: " in capsys.readouterr().err


def test_report_that_is_not_utf_8_is_rejected_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "comment.md"
    file.write_bytes(b"\xff")
    assert main(["comment", str(file)]) == 1
    assert "is not UTF-8" in capsys.readouterr().err
