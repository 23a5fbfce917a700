"""The one error of this package: a sentence for the user, with the remedy in it."""


class DevclusterError(Exception):
    """Something that the user can mend; printed without a traceback."""
