"""The `models` commands, with a real registry and real signatures."""

import base64
import contextlib
import errno
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import requests
import yaml

from devcluster.paths import CHECKOUT
from gitops.errors import GitopsError
from gpu_platform.models import promotion, registry
from gpu_platform.models.artifact import ARTIFACT_TYPE, CONFIG_TYPE
from gpu_platform.models.mirror import _mlflow_run_id
from gpu_platform.models.registry import Reference, Repository
from gpu_platform.runs.command import main
from inference.cache import Cache
from inference.fetch import FetchError, fetch
from kube.promoted_models import ENTRY
from tests.engine.models.conftest import Shelf
from tests.readme import blocks
from tests.registry import PASSWORD, USER, serving
from workload.manifest import read_manifest, write_manifest
from workload.tracking import RUNS_FILE

PAGE = CHECKOUT / "docs" / "model-registry.md"


def test_published_model_has_the_modelpack_media_types(shelf: Shelf) -> None:
    digest = shelf.publish()
    found = json.loads(shelf.repository.manifest(digest))
    assert found["artifactType"] == ARTIFACT_TYPE == "application/vnd.cncf.model.manifest.v1+json"
    assert found["config"]["mediaType"] == CONFIG_TYPE
    types = {
        layer["annotations"]["org.cncf.model.filepath"]: layer["mediaType"]
        for layer in found["layers"]
    }
    assert types == {
        "lineage.json": "application/vnd.cncf.model.doc.v1.raw",
        "manifest.json": "application/vnd.cncf.model.doc.v1.raw",
        "model.safetensors": "application/vnd.cncf.model.weight.v1.raw",
    }
    config = json.loads(shelf.repository.blob(found["config"]["digest"]))
    assert config["modelfs"]["diffIds"] == [layer["digest"] for layer in found["layers"]]


def test_the_same_export_has_the_same_digest(shelf: Shelf) -> None:
    assert shelf.publish() == shelf.publish()


def test_lineage_contains_data_code_specification_metrics_and_policies(shelf: Shelf) -> None:
    shelf.publish()
    manifest = read_manifest(shelf.exports["first"])
    reference = shelf.repository.reference.at(manifest.run)
    assert manifest.data_sha256
    lineage = show_model(reference)["lineage"]
    assert lineage["run"] == manifest.run
    assert lineage["specification"] == manifest.run.rpartition("-")[2]
    assert lineage["code"] == "registry.example.com/a@sha256:" + "0" * 64
    assert (lineage["dataset"], lineage["data_sha256"]) == ("digits", manifest.data_sha256)
    assert lineage["metrics"] == manifest.metrics
    assert lineage["policies"]["passed"] is True


def show_model(reference: str) -> dict[str, dict[str, object]]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["models", "show", reference]) == 0
    found: dict[str, dict[str, object]] = yaml.safe_load(out.getvalue())
    return found


def test_promoted_model_is_tagged_and_admitted(shelf: Shelf) -> None:
    digest = shelf.publish()
    assert shelf.promote(read_manifest(shelf.exports["first"]).run) == 0
    assert shelf.repository.resolve("production") == digest
    ((key, entry),) = shelf.admitted().items()
    assert digest == f"sha256:{key}"
    assert re.fullmatch(ENTRY, entry)
    assert entry.startswith(f"{shelf.name}@{digest} ")


def test_fetched_model_equals_the_published_one(shelf: Shelf, tmp_path: Path) -> None:
    digest = shelf.publish()
    found = fetch(f"oci://{shelf.name}@{digest}", tmp_path / "served")
    assert found == read_manifest(shelf.exports["first"])


def test_downloaded_model_is_verified_by_the_model_signing_library(
    shelf: Shelf, tmp_path: Path
) -> None:
    from model_signing import verifying

    digest = shelf.publish()
    folder = tmp_path / "downloaded"
    for layer in promotion.read(shelf.repository, digest).layers:
        shelf.repository.download(layer.digest, folder / layer.path)
    bundle = tmp_path / "model.sig"
    bundle.write_bytes(shelf.repository.signature(digest))
    verifying.Config().use_elliptic_key_verifier(public_key=shelf.public).verify(folder, bundle)


def test_model_list_shows_stages_and_metrics(
    shelf: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "list", shelf.name]) == 0
    assert "has no versions" in capsys.readouterr().out
    first, second = shelf.publish("first"), shelf.publish("second")
    assert shelf.promote(first, "staging") == shelf.promote(second) == 0
    other = shelf.registry.put_blob(shelf.path, b"{}", "application/vnd.oci.empty.v1+json")
    shelf.push({"schemaVersion": 2, "config": other, "layers": []}, "chart")
    capsys.readouterr()
    assert main(["models", "list", shelf.name]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["version", "digest", "stages", "data", "metrics"]
    assert len(rows) == 3
    assert any(row.startswith("chart ") and "not a model" in row for row in rows)
    (row,) = (row for row in rows if second in row)
    assert "production" in row
    assert "accuracy 0." in row


def test_model_list_fails_if_the_registry_fails(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf.publish()
    do_request = registry._Client.do_request

    def fail(client: Any, url: str, *arguments: Any, **options: Any) -> requests.Response:
        response = do_request(client, url, *arguments, **options)
        if "/blobs/" in url:
            response.status_code, response.reason = 503, "Service Unavailable"
        return response

    monkeypatch.setattr(registry._Client, "do_request", fail)
    assert main(["models", "list", shelf.name]) == 1
    out, err = capsys.readouterr()
    assert "not a model" not in out
    assert "503 Server Error: Service Unavailable" in err


def test_diff_of_two_models_lists_settings_and_metrics(
    shelf: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = shelf.publish("first"), shelf.publish("second")
    capsys.readouterr()
    assert main(["models", "diff", f"{shelf.name}@{first}", f"{shelf.name}@{second}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "settings.epochs: 4 -> 5" in lines
    assert any(
        re.match(r"metrics\.accuracy: 0\.\d+ -> 0\.\d+ \([+-]0\.\d+\)", line) for line in lines
    )
    assert not any(line.startswith("data_sha256") for line in lines)


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("accuracy >= incumbent - 1", 0),
        ("accuracy >= incumbent + 1", 3),
        ("accuracy >= 1.5", 3),
        ("unknown >= 0", 3),
        ("accuracy better", 64),
    ],
)
def test_a_worse_model_is_not_promoted(
    shelf: Shelf, condition: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = shelf.publish("first"), shelf.publish("second")
    assert shelf.promote(first) == 0
    reference = f"{shelf.name}@{second}"
    arguments = ["models", "promote", reference, "production", "--key", str(shelf.public)]
    if status == 64:
        assert main([*arguments, "--if", condition]) == 64
        assert "must compare" in capsys.readouterr().err
        return
    assert main([*arguments, "--if", condition]) == status
    assert shelf.repository.resolve("production") == (second if status == 0 else first)


@pytest.mark.parametrize(
    "text",
    [
        "digits",
        "models/digits",
        "registry.example.com",
        "registry.example.com/a:b:c",
        "oci://a.b/c",
    ],
)
def test_model_name_without_a_registry_is_rejected(text: str) -> None:
    with pytest.raises(GitopsError, match=r"such as registry\.example\.com/models/digits"):
        Reference.parse(text)


def test_credentials_are_sent_to_a_registry_that_requires_a_login(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "guarded"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    with serving(folder, login=True) as guarded:
        monkeypatch.setenv("SSL_CERT_FILE", str(guarded.authority))
        other = replace(shelf, registry=guarded, name=f"{guarded.host}/models/digits")
        with pytest.raises(GitopsError, match=f"docker login {guarded.host}"):
            other.publish()
        (tmp_path / ".docker").mkdir()
        pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        logins = {"auths": {guarded.host: {"auth": pair}}}
        (tmp_path / ".docker/config.json").write_text(json.dumps(logins))
        digest = other.publish()
        assert other.promote(digest) == 0
        url = f"oci://{other.name}@{digest}"
        with pytest.raises(FetchError, match="401"):
            fetch(url, tmp_path / "served")
        monkeypatch.setenv("OCI_USERNAME", USER)
        monkeypatch.setenv("OCI_PASSWORD", PASSWORD)
        assert fetch(url, tmp_path / "served") == read_manifest(shelf.exports["first"])


def test_cached_model_is_fetched_without_the_registry(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "cache", 2**30)
    cache.folder.mkdir()
    url = f"oci://{shelf.name}@{shelf.publish()}"
    downloaded = fetch(url, tmp_path / "downloaded", cache=cache)
    assert len([path for path in cache.folder.iterdir() if path.suffix != ".lock"]) == 3
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(FetchError, match="certificate verify failed"):
        fetch(url, tmp_path / "uncached")
    assert fetch(url, tmp_path / "copied", cache=cache) == downloaded
    for path in (tmp_path / "downloaded").iterdir():
        assert (tmp_path / "copied" / path.name).read_bytes() == path.read_bytes()


def test_error_names_the_missing_packages() -> None:
    program = (
        "import sys; sys.modules['oras'] = None; from gpu_platform.runs.command import main; "
        "sys.exit(main(['models', 'list', 'registry.example.com/models/digits']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "requirements/models.txt" in done.stderr


def test_an_unreachable_registry_is_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list", "127.0.0.1:1/models/digits"]) == 1
    assert "127.0.0.1:1/models/digits cannot be reached" in capsys.readouterr().err


def test_a_registry_that_stops_answering_is_reported(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = shelf.repository
    monkeypatch.setattr(repository, "_root", "http://127.0.0.1:1/v2/models/")
    digest = f"sha256:{'0' * 64}"
    for read in (repository.signature, repository.manifest, repository.blob):
        with pytest.raises(GitopsError, match=f"^{shelf.name} .*127.0.0.1"):
            read(digest)


def test_a_registry_that_never_answers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TIMEOUT_SECONDS", (5.0, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_once() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer_once)
        thread.start()
        name = f"127.0.0.1:{server.getsockname()[1]}/models/digits"
        repository = Repository(Reference.parse(name), plain_http=True)
        thread.join()
        with pytest.raises(GitopsError, match=r"did not return its tags: .*timed out"):
            repository.tags()


def test_objects_of_another_run_are_rejected(
    shelf: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(shelf.exports["first"]), shelf.name, "--key", str(shelf.key)]
    status = main(["models", "publish", *arguments, "--objects", str(shelf.objects["second"])])
    assert status == 1
    assert "use the export and the objects of the same run" in capsys.readouterr().err
    assert shelf.repository.tags() == []


@pytest.mark.parametrize("run", ["production", "", "team/digits", "sha256-1a2b3c4d.sig"])
def test_run_whose_name_cannot_be_a_tag_is_rejected(run: str, shelf: Shelf, tmp_path: Path) -> None:
    export = Path(shutil.copytree(shelf.exports["first"], tmp_path / "export"))
    write_manifest(export, read_manifest(export).model_copy(update={"run": run}))
    with pytest.raises(GitopsError, match="cannot be used as a tag"):
        promotion.publish(shelf.repository, export, [], {}, shelf.key, None)
    assert shelf.repository.tags() == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("digits: {queue: research}", "document 1"),
        ("- digits", "document 1"),
        ("digits", "document 1"),
        ("a: [", "document 1"),
        ("{apiVersion: v1, kind: A}", "belong to (no name)"),
    ],
)
def test_files_without_the_objects_of_the_run_are_rejected(
    text: str, reason: str, shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    arguments = [str(shelf.exports["first"]), shelf.name, "--key", str(shelf.key)]
    file = str(tmp_path / "job.yaml")
    assert main(["models", "publish", *arguments, "--objects", file]) == 1
    error = capsys.readouterr().err
    assert "error: " in error
    assert reason in error
    assert error.count(file) <= 1
    assert shelf.repository.tags() == []


def test_run_that_violates_policies_is_published_but_not_promoted(
    shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strict = tmp_path / "strict.json"
    strict.write_text('{"training-ends": "mandatory"}')
    objects = [*yaml.safe_load_all(shelf.objects["first"].read_text())]
    for task in objects[0]["spec"]["tasks"]:
        task["template"]["spec"].pop("activeDeadlineSeconds", None)
    endless = tmp_path / "endless.yaml"
    endless.write_text(yaml.safe_dump_all(objects))
    arguments = [str(shelf.exports["first"]), shelf.name, "--key", str(shelf.key)]
    options = ["--objects", str(endless), "--policy-config", str(strict)]
    assert main(["models", "publish", *arguments, *options]) == 0
    reported = capsys.readouterr()
    assert "cannot be promoted: policies reject the run: training-ends" in reported.err
    assert shelf.promote(reported.out.strip().rpartition("@")[2]) == 3
    assert shelf.admitted() == {}


def test_documented_commands_run_in_order(shelf: Shelf, tmp_path: Path) -> None:
    """Use the registry of the tests and the names of the real runs."""
    folder = tmp_path / "page"
    for name, target in (("first", folder), ("second", folder / "next")):
        shutil.copytree(shelf.exports[name], target / "export")
        shutil.copy(shelf.objects[name], target / "run.yaml")
    commands = [block.script for block in blocks(PAGE) if not block.needs]
    assert len(commands) >= 4
    script = "\n".join(["set -e", *commands])
    for written, name in (("digits-1a2b3c4d", "first"), ("digits-5e6f7a8b", "second")):
        assert written in script
        script = script.replace(written, read_manifest(shelf.exports[name]).run)
    script = script.replace("registry.example.com/models/digits", shelf.name)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "verified with model.pub" in done.stdout
    assert "settings.epochs: 4 -> 5" in done.stdout
    production = shelf.repository.resolve("production")
    assert production != shelf.repository.resolve("staging")
    assert production.removeprefix("sha256:") in shelf.admitted()


def test_mlflow_run_that_cannot_be_read_is_not_omitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / RUNS_FILE).write_text('{"mlflow": "1a2b"}')
    assert _mlflow_run_id(tmp_path / "export") == "1a2b"
    error = OSError(errno.ESTALE, "Stale file handle")
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=error))
    with pytest.raises(OSError, match="Stale file handle"):
        _mlflow_run_id(tmp_path / "export")
