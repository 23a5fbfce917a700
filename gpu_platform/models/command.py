"""Actions of `python -m gpu_platform models`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gitops.errors import BLOCKED, GitopsError, UsageError
from gitops.runs.command import kubectl
from gpu_platform.runs.findings import read_settings
from infra.manifests import Manifest as Object
from policies.documents import DocumentError
from policies.documents import read as documents_of
from workload.promotion import parse_named

try:
    from gpu_platform.models import promotion, signing
    from gpu_platform.models.mirror import Mirror
    from gpu_platform.models.registry import Reference, Repository, UnavailableError
except ImportError as error:
    raise GitopsError(
        f"{error}: install the packages for model commands with "
        "`pip install --require-hashes -r requirements/models.txt`"
    ) from None


def run(options: argparse.Namespace) -> int:
    """Run an action and return the exit status."""
    try:
        for line in _ACTIONS[options.action](options):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    except promotion.RejectedError as error:
        sys.stderr.write(f"rejected: {error}\n")
        return BLOCKED
    return 0


def _repository(options: argparse.Namespace, text: str) -> Repository:
    return Repository(Reference.parse(text), plain_http=options.plain_http)


def _version(options: argparse.Namespace, text: str) -> tuple[Repository, promotion.Version]:
    """Return the repository and the version for a reference with a tag or digest."""
    repository = _repository(options, text)
    version = repository.reference.digest or repository.reference.tag
    if version is None:
        raise UsageError(f"{text} has no version: use {text}:TAG or {text}@sha256:…")
    return repository, promotion.read(repository, version)


def _publish(options: argparse.Namespace) -> Iterator[str]:
    mirror = Mirror() if options.mlflow else None
    repository = _repository(options, options.repository)
    if repository.reference.tag or repository.reference.digest:
        raise UsageError(
            f"{options.repository}: omit the tag and digest; the run's name is used as the tag"
        )
    objects = _objects(options)
    password = os.environ.get(signing.PASSWORD)
    settings = read_settings(options.policy_config) if options.policy_config else {}
    model = promotion.publish(repository, options.export, objects, settings, options.key, password)
    for problem in model.lineage.missing():
        sys.stderr.write(f"the version cannot be promoted: {problem}\n")
    location = repository.reference.at(model.digest)
    yield location
    if mirror is not None:
        mirror.publish(location, model.lineage, options.export.absolute())


def _objects(options: argparse.Namespace) -> list[Object]:
    if options.objects is not None:
        try:
            documents = documents_of(str(options.objects), options.objects.read_bytes())
            return [document.manifest for document in documents]
        except OSError as error:
            raise GitopsError(f"{options.objects} cannot be read: {error.strerror}") from None
        except DocumentError as error:
            raise GitopsError(str(error)) from None
    from gpu_platform.runs.cluster import Member
    from workload.manifest import ExportError, read_manifest

    try:
        run = read_manifest(options.export).run
    except ExportError as error:
        raise GitopsError(str(error)) from None
    return [item for _, item in Member(kubectl(options), options.namespace).find(run)]


def _list(options: argparse.Namespace) -> Iterator[str]:
    repository = _repository(options, options.repository)
    tags: dict[str, list[str]] = {}
    for tag in repository.tags():
        tags.setdefault(repository.resolve(tag), []).append(tag)
    rows = [["version", "digest", "stages", "data", "metrics"]]
    for digest, names in tags.items():
        stages = [stage for stage in promotion.STAGES if stage in names]
        try:
            lineage = promotion.read(repository, digest).lineage
        except UnavailableError:
            raise
        except GitopsError:
            # Anybody with push access can add tags for other artifacts.
            rows.append([", ".join(names), digest, ", ".join(stages) or "-", "-", "not a model"])
            continue
        data = f"{lineage.dataset} {lineage.data_sha256[:12]}".strip()
        row = [lineage.run, digest, ", ".join(stages), data, _metrics(lineage.metrics)]
        rows.append([cell or "-" for cell in row])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if len(rows) > 1 else ():
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
    if len(rows) == 1:
        yield f"{repository.reference.name} has no versions"


def _show(options: argparse.Namespace) -> Iterator[str]:
    repository, version = _version(options, options.reference)
    if options.key is not None:
        promotion.verify(repository, version, options.key)
    signature = "not verified" if options.key is None else f"verified with {options.key}"
    document = {
        "reference": repository.reference.at(version.digest),
        "signature": signature,
        "lineage": version.lineage.model_dump(mode="json"),
        "files": {layer.path: layer.digest for layer in version.layers},
    }
    yield yaml.safe_dump(document, sort_keys=False).rstrip()


def _promote(options: argparse.Namespace) -> Iterator[str]:
    try:
        conditions = parse_named(options.conditions)
    except ValueError as error:
        raise UsageError(f"--if: {error}") from None
    mirror = Mirror() if options.mlflow else None
    repository, version = _version(options, options.reference)
    promotion.promote(repository, version, options.stage, options.key, conditions, kubectl(options))
    location = repository.reference.at(version.digest)
    yield f"promoted {location} to {options.stage}"
    if mirror is not None:
        mirror.promote(location, version.lineage, options.stage)


def _diff(options: argparse.Namespace) -> Iterator[str]:
    first, second = (_version(options, text)[1].lineage for text in (options.first, options.second))
    before, after = (_flatten(each.model_dump(mode="json")) for each in (first, second))
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        change = ""
        if isinstance(old, float) and isinstance(new, float):
            change = f" ({new - old:+g})"
        yield f"{name}: {_format_value(old)} -> {_format_value(new)}{change}"


def _flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _format_value(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def _metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in sorted(metrics.items()))


_ACTIONS: Mapping[str, Any] = {
    "publish": _publish,
    "list": _list,
    "show": _show,
    "promote": _promote,
    "diff": _diff,
}
