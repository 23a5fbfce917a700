"""Mirror that copies published versions and their stages to MLflow's model registry.

The OCI registry determines what is served; MLflow only shows the versions next to the runs. The
mlflow package is not used, because it conflicts with Pulumi's version of protobuf.
"""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

from gitops.errors import GitopsError, UsageError
from gpu_platform.models.lineage import Lineage
from workload.tracking import RUNS_FILE

TIMEOUT_SECONDS: Final = 30
_PREFIX: Final = "api/2.0/mlflow"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that rejects redirects, which could send the credentials to another server."""

    def redirect_request(self, *_: object) -> None:
        """Return None, so that urllib raises HTTPError."""


class Mirror:
    """Client for the MLflow server at MLFLOW_TRACKING_URI.

    The credentials are in MLFLOW_TRACKING_USERNAME and _PASSWORD, or in MLFLOW_TRACKING_TOKEN.
    """

    def __init__(self) -> None:
        self._url = os.environ.get("MLFLOW_TRACKING_URI", "").rstrip("/")
        if not self._url.startswith(("http://", "https://")):
            raise UsageError(
                f"--mlflow: MLFLOW_TRACKING_URI is {self._url or 'not set'}: set it to the URL of "
                "the server, such as https://mlflow.example.com"
            )

    def publish(self, reference: str, lineage: Lineage, export: Path | None = None) -> str:
        """Register a version unless it is already registered, and return its number.

        The version is linked to the MLflow run whose ID is stored next to `export`, if any.
        """
        name, source = lineage.model.replace("/", "."), f"oci://{reference}"
        self._post("registered-models/create", {"name": name}, ignored="RESOURCE_ALREADY_EXISTS")
        query = urllib.parse.urlencode({"filter": f"name='{name}'", "max_results": 10_000})
        versions = self._call(f"model-versions/search?{query}").get("model_versions", [])
        for version in versions:
            if version["source"] == source:
                return str(version["version"])
        tags = {
            "run": lineage.run,
            "code": lineage.code,
            "data_sha256": lineage.data_sha256,
            **{f"metrics.{each}": str(value) for each, value in lineage.metrics.items()},
        }
        content = {
            "name": name,
            "source": source,
            "run_id": _mlflow_run_id(export),
            "tags": [{"key": key, "value": value} for key, value in tags.items() if value],
        }
        return str(self._post("model-versions/create", content)["model_version"]["version"])

    def promote(self, reference: str, lineage: Lineage, stage: str) -> str:
        """Assign the alias of a stage to a version, and return the version's number."""
        version = self.publish(reference, lineage)
        content = {"name": lineage.model.replace("/", "."), "alias": stage, "version": version}
        self._post("registered-models/alias", content)
        return version

    def _post(self, path: str, content: dict[str, Any], ignored: str = "") -> dict[str, Any]:
        return self._call(path, json.dumps(content).encode(), ignored)

    def _call(self, path: str, content: bytes | None = None, ignored: str = "") -> dict[str, Any]:
        """Send a request and return the response, or {} if the error contains `ignored`.

        Raises:
            GitopsError: If the request fails with a different error.
        """
        request = urllib.request.Request(f"{self._url}/{_PREFIX}/{path}", content)  # noqa: S310
        request.add_header("Content-Type", "application/json")
        user, token = (os.environ.get(f"MLFLOW_TRACKING_{each}") for each in ("USERNAME", "TOKEN"))
        if user:
            pair = f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
            request.add_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
        elif token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            opener = urllib.request.build_opener(_NoRedirect)
            with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
                result: dict[str, Any] = json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            if ignored and ignored in text:
                return {}
            raise GitopsError(f"MLflow at {self._url}: {error.code} {text[:500]}") from None
        except (OSError, ValueError) as error:
            raise GitopsError(f"MLflow at {self._url}: {error}") from None
        return result


def _mlflow_run_id(export: Path | None) -> str:
    """Return the MLflow run ID that `track: mlflow` stored next to an export, or an empty string.

    Raise OSError if it cannot be read.
    """
    try:
        content = json.loads((export.parent / RUNS_FILE).read_bytes()) if export else {}
    except (FileNotFoundError, ValueError, RecursionError):
        return ""
    return str(content.get("mlflow", ""))
