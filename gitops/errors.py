"""The one error that the commands report without a traceback."""


class GitopsError(RuntimeError):
    """Something cannot be done; the text says what was found and what to do instead."""
