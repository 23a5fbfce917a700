"""Exit statuses of the commands, and errors that are reported without a traceback."""

UNCHANGED = 0
FAILED = 1
CHANGES = 2
BLOCKED = 3
USAGE = 64


class GitopsError(RuntimeError):
    """Error whose message states what was found and what to do instead."""

    status = FAILED


class UsageError(GitopsError):
    """Error in the combination or the syntax of a command's arguments."""

    status = USAGE
