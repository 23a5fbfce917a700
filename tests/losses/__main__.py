"""Count of lost requests: `make test-losses` (minutes; `REQUESTS=3000` sends fewer requests).

Clients send 30,000 requests to two servers during each disturbance: servers that are stopped by
SIGTERM and replaced, models that are replaced by SIGHUP, and workers that are killed. A request is
lost unless its response is 200. Clients find servers as they would through a Service: a server is
removed before it gets SIGTERM. The program exits with 1 if a request was lost.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from tests.attacks.client import request
from tests.attacks.target import Attacked, attacked, infer_body
from tests.inference.engine.exports import write_probe

REQUESTS: Final = int(os.environ.get("REQUESTS", "30000"))
CLIENTS: Final = 16
PRE_STOP_SECONDS: Final = 0.5
REQUESTS_BETWEEN: Final = 500
"""Number of requests between two disturbances."""
_REQUEST: Final = request(infer_body())


class Servers:
    """Two servers, each with its own directory, and clients that call them."""

    def __init__(self, folder: Path) -> None:
        self.outcomes: Counter[str] = Counter()
        self.disturbances = 0
        self._folder = folder
        self._running: dict[int, contextlib.ExitStack] = {}
        self._found: dict[int, Attacked] = {}
        """Servers that are visible to clients."""
        self._seed = 0

    async def start(self, number: int) -> None:
        """Start a server and make it visible to clients."""
        folder = self._folder / str(number)
        folder.mkdir(exist_ok=True)
        stack = self._running[number] = contextlib.ExitStack()
        settings = {"notice_seconds": 0.2, "poll_seconds": 0.05}
        context = attacked(folder, **settings)
        self._found[number] = await asyncio.to_thread(stack.enter_context, context)

    async def stop(self, number: int) -> None:
        """Stop a server as Kubernetes stops a pod."""
        del self._found[number]
        await asyncio.sleep(PRE_STOP_SECONDS)
        await asyncio.to_thread(self._running.pop(number).close)

    async def stop_all(self) -> None:
        """Stop all servers."""
        for number in tuple(self._running):
            await self.stop(number)

    async def replace(self) -> None:
        """Stop a server by SIGTERM and start its successor."""
        number = self.disturbances % 2
        await self.stop(number)
        self.disturbances += 1
        await self.start(number)

    async def reload(self) -> None:
        """Replace the model of every server by SIGHUP."""
        self._seed += 1
        for number, server in self._found.items():
            await asyncio.to_thread(write_probe, self._folder / str(number) / "export", self._seed)
            server.process.send_signal(signal.SIGHUP)
        self.disturbances += 1

    async def kill_worker(self) -> None:
        """Kill a worker of one server. Another worker handles requests in the meantime."""
        server = self._found[self.disturbances % 2]
        for worker in await asyncio.to_thread(server.workers):
            worker.kill()
        self.disturbances += 1

    async def call(self, until: Callable[[], bool]) -> None:
        """Send requests over one connection after another."""
        while not until():
            server = random.choice(tuple(self._found.values()))  # noqa: S311
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                with contextlib.closing(writer):
                    open_ = True
                    while open_ and not until():
                        writer.write(_REQUEST)
                        code, open_ = await _answer(reader)
                        self.outcomes[code] += 1
            except (OSError, EOFError) as error:
                self.outcomes[type(error).__name__] += 1


async def _answer(reader: asyncio.StreamReader) -> tuple[str, bool]:
    """Return the status of a response, and whether the connection stays open."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = head.partition("content-length: ")[2].partition("\r\n")[0]
    await reader.readexactly(int(length))
    return head.split()[1], "connection: close" not in head


async def _measure(servers: Servers, name: str, disturb: Callable[[], Awaitable[None]]) -> int:
    servers.outcomes.clear()
    servers.disturbances = 0
    started, finished = time.monotonic(), False

    async def disturbances() -> None:
        nonlocal finished
        while servers.outcomes.total() < REQUESTS:
            following = servers.outcomes.total() + REQUESTS_BETWEEN
            await disturb()
            while servers.outcomes.total() < following:
                await asyncio.sleep(0.01)
        finished = True

    async with asyncio.TaskGroup() as group:
        group.create_task(disturbances())
        for _ in range(CLIENTS):
            group.create_task(servers.call(lambda: finished))
    total = servers.outcomes.total()
    lost = total - servers.outcomes["200"]
    seconds = time.monotonic() - started
    codes = {code: count for code, count in servers.outcomes.items() if code != "200"}
    print(
        f"{name:28}{servers.disturbances:4} times{total:8} requests{lost:6} lost {seconds:6.1f} s"
        f"  {codes or ''}",
        flush=True,
    )
    return lost


async def main() -> int:
    """Measure each disturbance and return the exit code."""
    lost = 0
    with tempfile.TemporaryDirectory() as folder:
        servers = Servers(Path(folder))
        try:
            await asyncio.gather(servers.start(0), servers.start(1))
            lost += await _measure(servers, "workers killed", servers.kill_worker)
            lost += await _measure(servers, "models reloaded (SIGHUP)", servers.reload)
            lost += await _measure(servers, "servers stopped (SIGTERM)", servers.replace)
        finally:
            await servers.stop_all()
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
