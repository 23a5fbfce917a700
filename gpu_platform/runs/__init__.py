"""Runs of a team's members, without a stack of their own."""
