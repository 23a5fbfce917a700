"""Downloads of exports from a real web server and a real S3 server."""

import contextlib
import functools
import http.server
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import boto3
import psutil
import pytest
from moto.server import ThreadedMotoServer

from inference.fetch import FetchError, fetch, main
from tests.training.programs import until
from workload import exit_codes
from workload.manifest import MANIFEST_FILE, ExportError, read_manifest


@pytest.fixture
def served_dir(trained: Path, tmp_path: Path) -> Path:
    """A directory with a copy of an export, which a test may serve and damage."""
    return Path(shutil.copytree(trained, tmp_path / "shelf" / "export")).parent


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Stalled(Quiet):
    """A handler that never sends the weights."""

    def do_GET(self) -> None:
        if self.path.endswith(MANIFEST_FILE):
            super().do_GET()
        else:
            self.rfile.read()


class Redirects(Quiet):
    """A handler that redirects requests below /export to `target`, and serves other files."""

    target = ""

    def do_GET(self) -> None:
        if not self.path.startswith("/export/"):
            super().do_GET()
            return
        self.send_response(302)
        self.send_header("Location", self.target + self.path.removeprefix("/export/"))
        self.end_headers()


@contextlib.contextmanager
def listening(handler: type[Quiet], folder: Path) -> Iterator[str]:
    """Serve a directory; yield the URL of its export."""
    served = functools.partial(handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), served) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/export"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def url(served_dir: Path) -> Iterator[str]:
    """URL of the copy on a web server without TLS."""
    with listening(Quiet, served_dir) as address:
        yield address


def test_an_export_is_fetched_from_a_web_server(url: str, trained: Path, tmp_path: Path) -> None:
    manifest = fetch(url, tmp_path / "models" / "export")
    assert manifest == read_manifest(trained)
    assert weights(tmp_path / "models" / "export") == weights(trained)


def test_url_path_may_contain_any_characters(
    url: str, served_dir: Path, trained: Path, tmp_path: Path
) -> None:
    (served_dir / "export").rename(served_dir / "zählen-数")
    for name in ("zählen-数", "z%C3%A4hlen-%E6%95%B0"):
        manifest = fetch(url.replace("/export", f"/{name}"), tmp_path / "export")
        assert manifest == read_manifest(trained)


def test_an_export_is_fetched_from_s3_with_keys_from_the_environment(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        s3 = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket="models")
        for file in trained.iterdir():
            s3.upload_file(str(file), "models", f"digits/export/{file.name}")
        assert fetch("s3://models/digits/export", tmp_path / "export") == read_manifest(trained)
        assert weights(tmp_path / "export") == weights(trained)
        with pytest.raises(FetchError, match=r"s3://models/other/manifest.json cannot be read"):
            fetch("s3://models/other", tmp_path / "other")
    finally:
        server.stop()


def test_url_with_an_unsupported_scheme_is_refused(tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}", "memory:///", str(tmp_path)):
        with pytest.raises(FetchError, match="one of the schemes oci, s3, gs, az, https, http"):
            fetch(url, tmp_path / "export")


def test_credentials_in_a_url_are_refused_and_not_printed(tmp_path: Path) -> None:
    for url in ("https://me:secret@example.com/export", "https://example.com/export?key=secret"):
        with pytest.raises(FetchError, match="without a user, a password or a query") as failure:
            fetch(url, tmp_path / "export")
        assert "secret" not in str(failure.value)


@pytest.mark.parametrize("target", ["", "file:///etc/", "ftp://127.0.0.1/export/"])
def test_a_redirect_to_another_server_is_refused(
    target: str, url: str, served_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Redirects, "target", target or f"{url}/")
    with listening(Redirects, served_dir) as redirecting, pytest.raises(FetchError):
        fetch(redirecting, tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_a_redirect_on_the_same_server_is_followed(
    served_dir: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (served_dir / "moved").symlink_to(served_dir / "export")
    monkeypatch.setattr(Redirects, "target", "/moved/")
    with listening(Redirects, served_dir) as redirecting:
        assert fetch(redirecting, tmp_path / "export") == read_manifest(trained)


def test_weights_with_an_unexpected_digest_are_not_fetched(url: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=f"but {'0' * 64} was requested"):
        fetch(url, tmp_path / "export", "0" * 64)
    assert not (tmp_path / "export").exists()


def test_weights_with_the_expected_digest_are_fetched(
    url: str, trained: Path, tmp_path: Path
) -> None:
    wanted = read_manifest(trained).weights.sha256
    assert fetch(url, tmp_path / "export", wanted).weights.sha256 == wanted


def test_damaged_weights_leave_no_files(url: str, served_dir: Path, tmp_path: Path) -> None:
    served = served_dir / "export" / "model.safetensors"
    content = bytearray(served.read_bytes())
    content[-1] ^= 1
    served.write_bytes(content)
    with pytest.raises(ExportError, match="not those that were exported"):
        fetch(url, tmp_path / "export")
    assert list((tmp_path / "export").iterdir()) == []


def test_file_larger_than_the_manifest_states_is_refused(
    url: str, served_dir: Path, tmp_path: Path
) -> None:
    with (served_dir / "export" / "model.safetensors").open("ab") as served:
        served.write(b"more")
    with pytest.raises(ExportError, match="allowed bytes"):
        fetch(url, tmp_path / "export")
    assert list((tmp_path / "export").iterdir()) == []


def test_missing_weights_are_reported_with_their_url(
    url: str, served_dir: Path, tmp_path: Path
) -> None:
    (served_dir / "export" / "model.safetensors").unlink()
    with pytest.raises(FetchError, match=f"{url}/model.safetensors cannot be read"):
        fetch(url, tmp_path / "export")


def test_a_missing_artifact_is_reported(url: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="has no artifact 'int8'"):
        fetch(url, tmp_path / "export", kinds=["int8"])


def test_existing_files_that_match_the_manifest_are_not_fetched_again(
    url: str, served_dir: Path, tmp_path: Path
) -> None:
    fetch(url, tmp_path / "export")
    (served_dir / "export" / "model.safetensors").unlink()
    fetch(url, tmp_path / "export")


def test_incomplete_file_of_a_killed_download_is_removed(url: str, tmp_path: Path) -> None:
    target = tmp_path / "export"
    target.mkdir()
    (target / f".model.safetensors.{'0' * 16}.tmp").write_bytes(b"incomplete")
    fetch(url, target)
    assert {path.name for path in target.iterdir()} == {MANIFEST_FILE, "model.safetensors"}


def test_error_names_the_invalid_field_of_a_manifest(
    url: str, served_dir: Path, tmp_path: Path
) -> None:
    file = served_dir / "export" / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"weights": {"size": 1}}))
    with pytest.raises(ExportError, match=r"is damaged: weights\.sha256"):
        fetch(url, tmp_path / "export")


def test_sigterm_ends_a_download_of_process_1(served_dir: Path, tmp_path: Path) -> None:
    # The kernel does not deliver signals without a handler to PID 1.
    namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    target = tmp_path / "fetched"
    with listening(Stalled, served_dir) as url:
        command = [sys.executable, "-m", "inference.fetch", url, str(target)]
        outside = subprocess.Popen([*namespace, *command])
        try:
            until(lambda: target.exists() and any(target.iterdir()))
            [init] = psutil.Process(outside.pid).children()
            init.send_signal(signal.SIGTERM)
            assert outside.wait() == 128 + signal.SIGTERM
        finally:
            outside.kill()
            outside.wait()
    assert not list(target.iterdir())


def test_exit_codes_distinguish_invalid_input_from_failed_downloads(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([url, str(tmp_path / "export")]) == exit_codes.DONE
    assert main([url, str(tmp_path / "b"), f"--sha256={'0' * 64}"]) == exit_codes.BAD_INPUT
    assert main([f"{url}/elsewhere", str(tmp_path / "c")]) == exit_codes.FAILED
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["fetched", "error", "error"]


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_invalid_url_is_reported_as_one_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["https://[::1/digits", str(tmp_path)]) == 1
    assert "the URL cannot be used: Invalid IPv6 URL" in capsys.readouterr().out
