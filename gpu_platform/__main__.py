"""The Pulumi plugin: started by the engine, which finds it by PulumiPlugin.yaml beside this."""

import sys
from pathlib import Path

# The engine runs this folder, whose modules are no programs' own: the packages stand beside it.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from gpu_platform.plugin.host import serve  # noqa: E402

if __name__ == "__main__":
    serve()
