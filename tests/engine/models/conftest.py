"""A trained model with the objects of its run, two pairs of keys, and a real registry."""

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpu_platform.models import artifact, promotion
from gpu_platform.models.registry import Reference, Repository
from gpu_platform.runs.command import main
from gpu_platform.runs.submission import Description, read_jobs, submissions
from tests.gpu_platform.runs.test_command import JOB, PLATFORM
from tests.registry import Registry, registry
from training.config import TrainingConfig
from training.gang.world import World
from training.train import run

__all__ = ["registry"]

ENDING_SETTINGS = {"attempt_deadline_seconds": 3600}
"""Settings that the advisory rule `training-ends` requires."""


def keys(folder: Path) -> tuple[Path, Path]:
    """Write a private and a public key as `openssl ecparam -name prime256v1` does."""
    folder.mkdir()
    private = ec.generate_private_key(ec.SECP256R1())
    secret, public = folder / "model.key", folder / "model.pub"
    encoding = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.TraditionalOpenSSL
    secret.write_bytes(private.private_bytes(encoding, form, plain))
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(private.public_key().public_bytes(encoding, info))
    return secret, public


@dataclass(frozen=True)
class Shelf:
    """A repository, the exports of two runs, and the keys of a publisher and a promoter.

    `kubectl` is a program that records its calls.
    """

    registry: Registry
    name: str
    exports: dict[str, Path]
    objects: dict[str, Path]
    key: Path
    public: Path
    calls: Path = field(repr=False)
    spoiled: dict[Path, bytes] = field(default_factory=dict)
    """Changed files of the registry, which all repositories share."""

    @property
    def repository(self) -> Repository:
        return Repository(Reference.parse(self.name))

    @property
    def path(self) -> str:
        return self.repository.reference.repository

    def elsewhere(self, suffix: str) -> "Shelf":
        """Return a copy for another repository of the registry."""
        return replace(self, name=f"{self.name}-{suffix}")

    def publish(
        self, run: str = "first", key: Path | None = None, export: Path | None = None
    ) -> str:
        """Publish a run and return its digest."""
        objects = [*yaml.load_all(self.objects[run].read_text(), yaml.CSafeLoader)]
        folder = export or self.exports[run]
        signed = promotion.publish(self.repository, folder, objects, {}, key or self.key, None)
        return signed.digest

    def promote(self, version: str, stage: str = "production") -> int:
        """Promote with the command line and return its exit status."""
        reference = self.repository.reference.at(version)
        arguments = ["models", "promote", reference, stage, "--key", str(self.public)]
        return main(arguments)

    def admitted(self) -> dict[str, str]:
        """Return the entries that kubectl was called to add."""
        found: dict[str, str] = {}
        if self.calls.exists():
            for line in self.calls.read_text().splitlines():
                found |= json.loads(line.split("-p=", 1)[1])["data"]
        return found

    def push(self, document: dict[str, Any], tag: str) -> str:
        """Store a manifest that `models publish` did not write, and return its digest."""
        content = artifact.encoded(document)
        digest = artifact.digest_of(content)
        for version in (digest, tag):
            self.registry.put_manifest(self.path, version, content)
        return digest

    def corrupt(self, digest: str, change: Callable[[bytes], bytes]) -> None:
        """Change a file in the registry until the end of the test."""
        stored = self.registry.stored(digest)
        self.spoiled[stored] = stored.read_bytes()
        stored.write_bytes(change(self.spoiled[stored]))

    def sign_as(self, digest: str, other: str) -> None:
        """Attach the signature of another artifact to an artifact."""
        bundle = self.repository.signature(other)
        content = self.repository.manifest(digest)
        subject = artifact.descriptor(content, artifact.MANIFEST_TYPE)
        self.repository.push_signature(digest, artifact.signature_manifest(subject, bundle))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Exports of two real runs, which differ in their length, with the objects of the runs."""
    folder = tmp_path_factory.mktemp("runs")
    found = {}
    for number, name in enumerate(("first", "second"), 4):
        hyperparameters = {**JOB["hyperparameters"], "epochs": number}
        jobs = folder / f"{name}.yaml"
        jobs.write_text(
            yaml.safe_dump({"tiny": {**JOB, **ENDING_SETTINGS, "hyperparameters": hyperparameters}})
        )
        (submission,) = submissions(read_jobs(jobs), Description.parse(PLATFORM))
        settings = {**hyperparameters, "run_dir": str(folder / submission.name), "device": "cpu"}
        run(TrainingConfig.model_validate(settings), World(rank=0, size=1, local_rank=0, master=""))
        objects = folder / f"{name}-objects.yaml"
        plain = json.loads(json.dumps([*submission.manifests]))
        objects.write_text(yaml.safe_dump_all(plain))
        found[name] = (folder / submission.name / "export", objects)
    return found


@pytest.fixture
def shelf(
    registry: Registry,
    trained: dict[str, tuple[Path, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shelf]:
    monkeypatch.setenv("SSL_CERT_FILE", str(registry.authority))
    programs = tmp_path / "bin"
    programs.mkdir()
    calls = tmp_path / "calls"
    kubectl = programs / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    key, public = keys(tmp_path / "keys")
    copies: dict[str, Path] = {}
    for name, (export, _) in trained.items():
        copies[name] = Path(shutil.copytree(export, tmp_path / name / "export"))
    made = Shelf(
        registry=registry,
        name=f"{registry.host}/models/{tmp_path.name.replace('_', '-').lower().strip('-')}",
        exports=copies,
        objects={name: objects for name, (_, objects) in trained.items()},
        key=key,
        public=public,
        calls=calls,
    )
    yield made
    for path, content in made.spoiled.items():
        path.write_bytes(content)
