"""Tools for the maintainers of this repository, which the stack does not require."""
