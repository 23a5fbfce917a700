"""Exit statuses of the commands, and errors that are reported without a traceback."""

UNCHANGED = 0
FAILED = 1
CHANGES = 2
BLOCKED = 3
USAGE = 64


class GitopsError(RuntimeError):
    """An error whose text states what was found and what to do instead."""

    status = FAILED


class UsageError(GitopsError):
    """Options that contradict each other."""

    status = USAGE
