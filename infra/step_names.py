"""Names of the jobs of a run with steps: pure, and quickly imported by who only reads them."""


def template_name(run: str, step: str) -> str:
    """Name of a step's template; a JobFlow names its job `<flow>-<template>`, so it is short.

    A run is named `<key>-<hash>`, and its templates `<hash>-<step>`.
    """
    return f"{run.rpartition('-')[2]}-{step}"


def job_prefix(run: str) -> str:
    """How the names of the jobs of all steps of a run begin."""
    return f"{run}-{template_name(run, '')}"
