"""Modules that the tests' fork server imports in advance.

PyTorch is imported about 17% faster while garbage collection is disabled.
"""

import gc
from importlib import import_module

MODULES = (
    *("training.train", "training.command_line", "inference.server"),
    *("workload.models.classifiers", "workload.models.gpt"),
    *("torch._dynamo", "accelerate.commands.launch"),
    # Modules of the tests themselves: gangs that load pytest, data sets and models.
    "hypothesis",
    *("tests.training.forked_gang", "tests.training.custom_models"),
)

gc.disable()
for name in MODULES:
    import_module(name)
gc.enable()
