"""A policy pack that starts while the CLI does.

The engine loads a pack only when the CLI is up and has listed the installed packages, it first has
an interpreter try an import, and it runs the program only when the pack answers. Python's start is
most of that. So the pack is started at once, beside the CLI, and the engine is given a folder whose
program only passes on what the pack says: `starting` makes both, `server` runs the pack, `relay` is
that program. It is the same pack in the same environment, and judges the same.
"""
