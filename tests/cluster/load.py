"""Constant load on a model server, with every response counted."""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np

from tests.cluster.platform import HANG_SECONDS
from training.data import held_out_digits

TIMEOUT = 20.0


class Background(ABC):
    """Context manager that runs `_work` in a thread until it exits."""

    def __init__(self) -> None:
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    @abstractmethod
    def _work(self) -> None:
        """Run in the thread until `_ending` is set."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ending.set()
        self._thread.join()


@dataclass(frozen=True)
class Seen:
    """Number of responses by status code, or by error if there was no response."""

    outcomes: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)

    @property
    def answered(self) -> int:
        return self.outcomes["200"]

    @property
    def failed(self) -> dict[str, int]:
        return {outcome: count for outcome, count in self.outcomes.items() if outcome != "200"}


def inference_request(
    shape: tuple[int, ...] = (1, 8, 8), part: slice = slice(16)
) -> dict[str, Any]:
    """Return an inference request with some of the held-out digits, in a model's input shape."""
    images, _ = held_out_digits(shape)
    batch = np.asarray(images[part])
    data = batch.ravel().tolist()
    tensor = {"name": "images", "datatype": "FP32", "shape": list(batch.shape), "data": data}
    return {"inputs": [tensor], "outputs": [{"name": "class"}]}


class Load(Background):
    """Clients that wait for each response, and then pause before the next request.

    Connections are kept alive.
    """

    def __init__(self, url: str, document: dict[str, Any], clients: int, pause: float) -> None:
        super().__init__()
        self._url, self._document, self._clients, self._pause = url, document, clients, pause
        self._seen = Seen()

    def seen(self) -> Seen:
        """Return all counts so far."""
        return Seen(self._seen.outcomes.copy(), self._seen.versions.copy())

    def during(self, action: Callable[[], object], at_least: int = 0) -> Seen:
        """Count responses during an action, and then until there are `at_least` of them."""
        before = self.seen()
        action()
        deadline = time.monotonic() + HANG_SECONDS
        while self.since(before).outcomes.total() < at_least:
            assert time.monotonic() < deadline, f"only {self.since(before)}"
            time.sleep(0.05)
        return self.since(before)

    def since(self, before: Seen) -> Seen:
        """Return the counts since `before`, an earlier result of `seen`."""
        now = self.seen()
        return Seen(now.outcomes - before.outcomes, now.versions - before.versions)

    def _work(self) -> None:
        asyncio.run(self._call_all())

    async def _call_all(self) -> None:
        limits = httpx.Limits(max_connections=self._clients)
        async with (
            httpx.AsyncClient(timeout=TIMEOUT, limits=limits, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self._clients):
                group.create_task(self._call(client))

    async def _call(self, client: httpx.AsyncClient) -> None:
        while not self._ending.is_set():
            try:
                answer = await client.post(self._url, json=self._document)
            except httpx.HTTPError as error:
                self._seen.outcomes[type(error).__name__] += 1
            else:
                self._seen.outcomes[str(answer.status_code)] += 1
                if answer.is_success:
                    self._seen.versions[answer.json()["model_version"]] += 1
            await asyncio.sleep(self._pause)
