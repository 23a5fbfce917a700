"""Entry point: `python -m inference` serves one model until it receives SIGTERM."""

import argparse
import os
import signal

from inference.config import describe_variables, read_config
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.report import conclude, emit


def main() -> int:
    """Run the server and return its exit code."""
    argparse.ArgumentParser(
        prog="python -m inference",
        description="Serve one exported model over HTTP (the V2 inference protocol) until the "
        "process receives SIGTERM.",
        epilog=f"environment variables:\n{describe_variables()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    try:
        config = read_config(os.environ)
        # Imported here, so that configuration errors appear before this slow import.
        from inference.server import run

        run(config)
    except ConfigurationError as error:
        conclude("error", message=str(error), exit_code=exit_codes.BAD_INPUT)
        return exit_codes.BAD_INPUT
    emit("stopped", model=config.model_name)
    return exit_codes.DONE


if __name__ == "__main__":
    # PID 1 of a container ignores SIGTERM by default. Until the server installs its own handler,
    # there are no requests to finish, so exit at once.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(exit_codes.DONE))
    # Exit immediately: a computation that exceeded the drain time would keep the process alive.
    exit_codes.exit_process(main())
