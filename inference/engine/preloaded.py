"""Module that the fork server imports before it forks workers.

It is a separate module, because importing it also changes the process's signal handling.
"""

import atexit
import gc
import signal

import inference.engine.worker  # noqa: F401

# If SIGTERM reaches the whole process group, only the server reacts. It stops the workers when
# they are idle.
signal.signal(signal.SIGTERM, signal.SIG_IGN)

# Exclude all objects from garbage collection: collections in a worker would write to, and thus
# copy, the memory pages that the worker shares with the fork server.
gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)
