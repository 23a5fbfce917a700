"""Models in a registry: publication with lineage, signatures, and promotion."""
