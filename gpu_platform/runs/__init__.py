"""Runs that team members submit without a stack."""
