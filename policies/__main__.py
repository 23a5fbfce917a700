"""Entry point of the policy pack, for `pulumi --policy-pack policies`."""

import gc
import sys
from pathlib import Path

# Imports create no garbage, and garbage collection takes a fifth of their time.
gc.disable()

# The engine runs this directory as a program, not as a package: its modules must not hide others.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from policies.sdk import check  # noqa: E402  after the path is set

check()

from policies.pack import serve  # noqa: E402  after the SDK is checked

serve()
