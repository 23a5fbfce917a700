"""Minimum permissions for the pipelines that preview and update a stack."""
