"""Parameter object for the admission policies: the models that may be served in a cluster.

`python -m gpu_platform models promote` adds an entry after it has verified the signature of a
model. CEL cannot verify signatures, so the policies admit the digests of the entries.
"""

import re
from collections.abc import Mapping
from typing import Final

NAMESPACE: Final = "gpu-platform-models"
NAME: Final = "promoted-models"
"""The ConfigMap. Its keys are the digests of the promoted artifacts, in hexadecimal digits."""
PROMOTER: Final = "model-promoters"
"""The Role that may add and remove entries."""

DIGEST: Final = r"sha256:[0-9a-f]{64}"
REFERENCE: Final = rf"[^\s@]+@{DIGEST}"
# Also part of a CEL expression: RE2 has no lookaround.
ENTRY: Final = (
    rf"^{REFERENCE} run=\S+ specification=[0-9a-f]{{8}} data={DIGEST} code={REFERENCE}"
    r" metrics=[^\s:,]+:[^\s:,]+(,[^\s:,]+:[^\s:,]+)* policies=passed key=[0-9a-f]{64}$"
)
"""Pattern of an entry with a complete lineage: everything that determined the model."""


def entry(
    reference: str,
    *,
    run: str,
    specification: str,
    data: str,
    code: str,
    metrics: Mapping[str, float],
    key: str,
) -> str:
    """Return the entry of an artifact; raise ValueError if its lineage is incomplete.

    `key` is the digest of the public key that verified the signature.
    """
    measured = ",".join(f"{name}:{value:g}" for name, value in sorted(metrics.items()))
    text = (
        f"{reference} run={run} specification={specification} data=sha256:{data} code={code}"
        f" metrics={measured} policies=passed key={key}"
    )
    if not re.fullmatch(ENTRY, text):
        raise ValueError(f"the lineage is incomplete: {text}")
    return text
