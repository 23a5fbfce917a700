"""`python -m devcluster.toolchain GROUP`: makes the tools of a group available."""

import argparse
import sys

from devcluster.errors import DevclusterError
from devcluster.paths import cache_root
from devcluster.toolchain import GROUPS, ensure


def main() -> int:
    """Prints what is built, and the folder of the tools at the end; 1 when a tool is missing."""
    parser = argparse.ArgumentParser(prog="python -m devcluster.toolchain", description=__doc__)
    parser.add_argument("group", choices=GROUPS, nargs="?", default="real")
    group = parser.parse_args().group
    try:
        toolchain = ensure(group, cache_root(), lambda line: print(line, flush=True))
    except DevclusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if toolchain.installed:
        print(f"already installed as pinned: {', '.join(toolchain.installed)}")
    print(f"tools are in {toolchain.bin}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
