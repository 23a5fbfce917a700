"""Imports of the fork server that programs of tests share.

Without garbage collection, importing PyTorch is faster by a sixth.
"""

import gc
from importlib import import_module

MODULES = (
    *("training.train", "training.command_line", "inference.server"),
    *("workload.models.classifiers", "workload.models.gpt"),
    *("torch._dynamo", "sklearn.model_selection", "accelerate.commands.launch"),
    # The first imports of a test's process: its gang with pytest, and data and models of tests.
    *("tests.training.digits", "tests.training.forked_gang", "tests.training.custom_models"),
)

gc.disable()
for name in MODULES:
    import_module(name)
gc.enable()
