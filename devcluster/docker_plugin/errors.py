"""The one error of this package."""


class ImageError(Exception):
    """A sentence for the user: what is wrong with an image, and the end of Docker's output."""
