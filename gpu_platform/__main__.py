"""The Pulumi plugin, which the engine finds by PulumiPlugin.yaml and starts."""

import sys
from pathlib import Path

# The engine runs this directory as a program; the packages are next to it.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from gpu_platform.plugin.host import serve  # noqa: E402

if __name__ == "__main__":
    serve()
