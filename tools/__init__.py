"""Tools for maintainers of this repository. The stack does not require them."""
