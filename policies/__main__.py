"""Builds the policy pack for `pulumi --policy-pack policies` and nothing else."""

import sys
from pathlib import Path

# The engine runs this folder, not the package in it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from policies.pack import serve

serve()
