"""Tools of this repository's maintainers; the stack needs none of them."""
