"""A word about stacks that have grown too large to be updated quickly."""

from typing import Final

import pulumi

MOST_JOBS: Final = 100
"""Jobs of one stack. With a state in files or a bucket each step of an update writes the whole
state anew, so that the time for a job grows with the number of jobs (docs/scale.md)."""


def warn_of_many(jobs: int) -> None:
    """Warn, in the preview as well, of more jobs than one stack should have."""
    if jobs > MOST_JOBS:
        pulumi.log.warn(
            f"training.jobs has {jobs} jobs. Updates of more than {MOST_JOBS} become slow, because "
            "with a state in files or in a bucket every step writes the whole state: give each "
            "team a stack of its own (docs/scale.md), or keep the state in Pulumi Cloud."
        )
