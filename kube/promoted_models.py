"""Parameter object for the admission policies: the models that may be served in a cluster.

`python -m gpu_platform models promote` adds an entry after it has verified the signature of a
model. CEL cannot verify signatures, so the policies admit the models whose digests have an entry.
"""

import re
from collections.abc import Mapping
from typing import Final

NAMESPACE: Final = "gpu-platform-models"
NAME: Final = "promoted-models"
"""Name of the ConfigMap. Its keys are the hexadecimal digests of the promoted artifacts."""
PROMOTER: Final = "model-promoters"
"""Name of the Role that permits adding and removing entries."""

DIGEST: Final = r"sha256:[0-9a-f]{64}"
REFERENCE: Final = rf"[^\s@]+@{DIGEST}"
# A CEL expression also contains this pattern. CEL uses RE2, so lookaround is not allowed.
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
    """Return the entry for an artifact; raise ValueError if its lineage is incomplete.

    `key` is the digest of the public key with which the signature was verified.
    """
    measured = ",".join(f"{name}:{value:g}" for name, value in sorted(metrics.items()))
    text = (
        f"{reference} run={run} specification={specification} data=sha256:{data} code={code}"
        f" metrics={measured} policies=passed key={key}"
    )
    if not re.fullmatch(ENTRY, text):
        raise ValueError(f"the lineage is incomplete: {text}")
    return text
