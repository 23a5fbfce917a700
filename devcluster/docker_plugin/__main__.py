"""Started by Pulumi's engine with the engine's address as its first argument."""

import asyncio
import contextlib

from devcluster.docker_plugin.server import serve

if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
