"""Minimum permissions of the pipelines that preview and update a stack."""
