"""Generators of files in this repository: `make generate`."""
