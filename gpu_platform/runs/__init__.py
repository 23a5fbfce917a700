"""Runs of team members, without a stack."""
