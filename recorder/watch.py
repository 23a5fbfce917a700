"""Recorder that archives run failures. It only watches pods, and changes nothing in the cluster."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from httpx2 import HTTPError
from lightkube import AsyncClient
from lightkube.operators import exists
from lightkube.resources.core_v1 import Pod
from tenacity import (
    before_sleep_log,
    retry,
    retry_if_exception_type,
    stop_after_delay,
    wait_random_exponential,
)

from kube.names import RUN_LABEL
from recorder.log_streams import LogStreams
from recorder.pods import (
    Attempt,
    Termination,
    claim_of,
    events_of,
    failed_containers,
    run_of,
    running_containers,
    succeeded_containers,
    unobserved_terminations,
)
from recorder.records import Bounds, write

WATCH_SECONDS: Final = 240.0
"""Time (s) after which all pods are listed again, because a lost connection may go unnoticed."""

RETRY_SECONDS: Final = 900.0
"""Time (s) for which a failed write is retried, for example while the claim is full."""

_log = logging.getLogger("recorder")
_retry_wait = wait_random_exponential(multiplier=0.5, max=30)
_log_retry = before_sleep_log(_log, logging.WARNING)


async def watch(claims: Path, bounds: Bounds) -> None:
    """Record failures until canceled. Outages of the API server do not end the loop."""
    recorder = Recorder(lambda: AsyncClient(http2=True), claims, bounds)
    while True:
        await recorder.observe()


@dataclass
class Recorder:
    """Failure recorder for all runs in one namespace.

    `connect` returns a new client for that namespace.
    """

    connect: Callable[[], AsyncClient]
    claims: Path
    bounds: Bounds
    _pods: dict[str, Pod] = field(default_factory=dict)
    _recorded: set[Attempt] = field(default_factory=set)
    _tasks: dict[str, set[asyncio.Task[None]]] = field(default_factory=lambda: defaultdict(set))
    """Maps UIDs of pods to unfinished tasks."""

    def __post_init__(self) -> None:
        self.client = self.connect()
        self.streams = LogStreams(self.connect, self.bounds.lines, self.bounds.bytes)
        self._write_lock = asyncio.Lock()

    @retry(wait=_retry_wait, retry=retry_if_exception_type(HTTPError), before_sleep=_log_retry)
    async def observe(self) -> None:
        """List all pods of runs, and watch them for `WATCH_SECONDS`."""
        listed = self.client.list(Pod, labels={RUN_LABEL: exists()})
        present = {_uid(pod): pod async for pod in listed}
        for pod in present.values():
            self.update(pod)
        # These pods were deleted between two watches.
        for uid in set(self._pods) - set(present):
            self.remove(self._pods[uid])
        try:
            async with asyncio.timeout(WATCH_SECONDS):
                await self._watch(listed.resourceVersion)
        except TimeoutError:
            return

    async def _watch(self, version: str) -> None:
        changes: Any = self.client.watch(
            Pod, labels={RUN_LABEL: exists()}, resource_version=version
        )
        async with aclosing(changes):
            async for kind, pod in changes:
                if kind == "DELETED":
                    self.remove(pod)
                else:
                    self.update(pod)

    def update(self, pod: Pod) -> None:
        """Stream the logs of running containers and record failed ones."""
        self._pods[_uid(pod)] = pod
        for attempt in running_containers(pod):
            self.streams.follow(attempt)
        for attempt in succeeded_containers(pod):
            # The pods of finished runs may exist for months, and their log lines need memory.
            self.streams.drop(attempt)
        for termination in failed_containers(pod):
            self._start_record(pod, termination)

    def remove(self, pod: Pod) -> None:
        """Record the failed and the running containers of a deleted pod, and forget the pod."""
        uid = _uid(pod)
        for termination in (
            *failed_containers(pod),
            *unobserved_terminations(pod, datetime.now(UTC)),
        ):
            self._start_record(pod, termination)
        self._pods.pop(uid, None)
        self._spawn(uid, self._forget(uid, set(self._tasks[uid])))

    def _start_record(self, pod: Pod, termination: Termination) -> None:
        if termination.attempt not in self._recorded:
            self._recorded.add(termination.attempt)
            self._spawn(_uid(pod), self._record(pod, termination))

    def _spawn(self, uid: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[uid].add(task)
        task.add_done_callback(self._tasks[uid].discard)

    async def _forget(self, uid: str, records: set[asyncio.Task[None]]) -> None:
        await asyncio.gather(*records, return_exceptions=True)
        self.streams.forget(uid)
        self._recorded = {attempt for attempt in self._recorded if attempt.uid != uid}
        self._tasks.pop(uid, None)

    async def _record(self, pod: Pod, termination: Termination) -> None:
        """Write the record of a termination to the claim of its run."""
        name, claim = termination.attempt.pod, claim_of(pod)
        lines = await self.streams.last_lines(termination.attempt, termination.restarted)
        self.streams.drop(termination.attempt)
        details: dict[str, Any] = {
            "run": run_of(pod),
            "node": pod.spec.nodeName if pod.spec else "",
        }
        details["events"] = []
        try:
            details["events"] = await self._events(pod)
        except HTTPError as error:
            _log.warning("cannot read events from the API server: %s", error)
        # List the directory instead of accessing the claim: access to an unavailable claim would
        # fail here, and only `_write` retries.
        if claim is None or self.claims / claim not in self.claims.iterdir():
            _log.warning("%s: the run's claim %s is not mounted in the recorder", name, claim)
            return
        try:
            path = await self._write(self.claims / claim / run_of(pod), termination, lines, details)
        except OSError as error:
            _log.error("%s: cannot write a record: %s", name, error)
            return
        if path is not None:
            _log.info("%s: %s, recorded in %s", name, termination.reason, path)

    @retry(
        wait=_retry_wait,
        stop=stop_after_delay(RETRY_SECONDS),
        retry=retry_if_exception_type(OSError),
        before_sleep=_log_retry,
        reraise=True,
    )
    async def _write(
        self, run_dir: Path, termination: Termination, lines: list[str], details: dict[str, Any]
    ) -> Path | None:
        # Write one record at a time: the pods of a gang fail together and share one directory.
        async with self._write_lock:
            return await asyncio.to_thread(write, run_dir, termination, lines, details, self.bounds)

    @retry(
        wait=_retry_wait,
        stop=stop_after_delay(60),
        retry=retry_if_exception_type(HTTPError),
        reraise=True,
    )
    async def _events(self, pod: Pod) -> list[dict[str, Any]]:
        return await events_of(self.client, pod)


def _uid(pod: Pod) -> str:
    return (pod.metadata.uid if pod.metadata else None) or ""
