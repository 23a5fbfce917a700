"""Exit codes of the training program: what a job's failure policy can act upon.

They follow sysexits.h where it has a fitting code. Anything else (as after a signal) is
a failure like FAILED: the gang is restarted and resumes from its last checkpoint.
"""

from typing import Final

DONE: Final = 0
"""The run is complete and its export is there, also when it was complete before."""

FAILED: Final = 1
"""Something broke, often in another process of the gang: start again from the last checkpoint."""

BAD_INPUT: Final = 64
"""Configuration, data or environment are wrong, or the loss is not a number any more: starting
again would end in the same (EX_USAGE)."""

INTERRUPTED: Final = 75
"""SIGTERM arrived, the state is saved: start again to continue (EX_TEMPFAIL)."""

HUNG: Final = 76
"""No step was seen for hang_timeout seconds; the stacks are on standard error: start again from the
last checkpoint (EX_PROTOCOL)."""
