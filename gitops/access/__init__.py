"""The least rights of the pipelines that preview and update a stack."""
