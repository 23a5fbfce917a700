"""What every worker needs, imported once: workers are forked from a process that has it."""

import gc
import signal

import inference.engine.worker  # noqa: F401

# A signal to the whole group is for the server, which ends the workers when they are done.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
# What is there now stays: collecting it would copy pages that are shared.
gc.freeze()
