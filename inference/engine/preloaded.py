"""What every worker needs, imported once: workers are forked from a process that has it."""

import signal

import inference.engine.worker  # noqa: F401

# A signal to the whole group is for the server, which ends the workers when they are done.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
