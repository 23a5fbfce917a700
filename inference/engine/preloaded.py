"""Imports of the fork server from which workers are forked.

A separate module, because its import also changes the signal handling of the process.
"""

import atexit
import gc
import signal

import inference.engine.worker  # noqa: F401

# The server handles SIGTERM for the process group, and stops the workers when they are idle.
signal.signal(signal.SIGTERM, signal.SIG_IGN)

# The garbage collector of a worker would write to all objects that it shares with the fork server.
gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)
