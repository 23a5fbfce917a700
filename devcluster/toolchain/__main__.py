"""`python -m devcluster.toolchain GROUP`: install the tools of a group."""

import argparse
import sys

from devcluster import DevclusterError, host
from devcluster.paths import cache_root
from devcluster.progress import Reporter
from devcluster.spec import Kind
from devcluster.toolchain import ensure
from devcluster.toolchain.pins import GROUPS, Extra, Group


def main() -> int:
    """Install the tools and print their directory. Return 1 if a tool cannot be installed."""
    parser = argparse.ArgumentParser(prog="python -m devcluster.toolchain", description=__doc__)
    parser.add_argument(
        "group",
        choices=("auto", *GROUPS),
        nargs="?",
        default="auto",
        help="tools to install: engine (only Pulumi), simulated (adds the control plane) or real "
        "(adds the nodes); auto, the default, selects real if this host supports real nodes, "
        "otherwise simulated",
    )
    parser.add_argument(
        "--languages",
        action="store_true",
        help="also build Pulumi's language hosts for YAML and TypeScript",
    )
    options = parser.parse_args()
    reporter = Reporter()
    try:
        group: Group = options.group
        if options.group == "auto":
            group = "real" if host.choose_kind("auto").kind is Kind.REAL else "simulated"
        extras: list[Extra] = ["languages"] if options.languages else []
        with reporter.step("tools") as step:
            toolchain = ensure(group, cache_root(), step.update, extras, announce=reporter.say)
            step.detail = f"in {toolchain.bin}"
    except (DevclusterError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: run the command again to resume the build", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
