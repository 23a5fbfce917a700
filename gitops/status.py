"""Exit statuses that all commands share."""

UNCHANGED = 0
FAILED = 1
CHANGES = 2
BLOCKED = 3
USAGE = 64
