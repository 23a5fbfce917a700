"""Entry point of the Pulumi plugin and of the commands for teams."""

import sys
from pathlib import Path

# The engine runs this directory as a program; the other packages are in its parent directory.
IS_PLUGIN = not __package__
if IS_PLUGIN:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

if __name__ == "__main__":
    if IS_PLUGIN:
        from gpu_platform.plugin.host import serve

        serve()
    else:
        from gpu_platform.runs.command import main
        from policies import output

        # Without this handler, SIGTERM would not stop the simulated cluster of `run --simulate`.
        output.exit_on_termination()
        sys.exit(output.run(main))
