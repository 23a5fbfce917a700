"""A watch of pods, by the API's own stream through kubectl, that goes on where it was cut off."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.scale_gangs import Gangs
from kube.names import RUN_LABEL


class PodWatch:
    """Tells `gangs` of every change of the pods under a path, from the moment it is made on.

    The API server may end a stream at any time; the next one begins at the resource version that
    was seen last, so nothing is missed.
    """

    def __init__(self, kubectl: Sequence[str], path: str, gangs: Gangs) -> None:
        self._get = [*kubectl, "get", "--raw"]
        self._path = path
        self._gangs = gangs
        self._stopped = False
        self._process: subprocess.Popen[str] | None = None
        self.streams = 0
        self.problem: str | None = None
        first = subprocess.run(
            [*self._get, f"{self._path}?limit=1"], capture_output=True, text=True, check=True
        )
        self._version = str(json.loads(first.stdout)["metadata"]["resourceVersion"])
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """Ends the watch."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()
        self._reader.join()

    def _read(self) -> None:
        while not self._stopped and self.problem is None:
            self.streams += 1
            query = f"watch=1&allowWatchBookmarks=true&resourceVersion={self._version}"
            with subprocess.Popen(
                [*self._get, f"{self._path}?{query}"], stdout=subprocess.PIPE, text=True
            ) as process:
                self._process = process
                assert process.stdout is not None  # noqa: S101  it is a pipe
                for line in process.stdout:
                    self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        thing = event["object"]
        if event["type"] == "ERROR":
            self.problem = f"the watch of pods cannot go on: {thing.get('message', thing)}"
            return
        self._version = thing["metadata"]["resourceVersion"]
        if event["type"] in ("ADDED", "MODIFIED"):
            metadata = thing["metadata"]
            gang = metadata.get("labels", {}).get(RUN_LABEL, "")
            node = thing["spec"].get("nodeName")
            self._gangs.note(gang, metadata["name"], node, time.monotonic())
