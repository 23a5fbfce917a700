"""Models in a registry: published with their lineage, signed, and promoted."""
