"""Imports of the fork server from which workers are forked.

A module of its own, since its import also changes the signal handling of the process.
"""

import signal

import inference.engine.worker  # noqa: F401

# SIGTERM to the whole process group is for the server, which stops the workers when they are idle.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
