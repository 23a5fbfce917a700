"""Tools for the maintainers of this repository. The stack does not need them."""
