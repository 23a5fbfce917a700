"""Everything in the repository that is generated from the code: `make generate`."""
