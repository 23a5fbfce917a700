"""Kind `tensorflow`: a Volcano Job with the plugin `tensorflow`."""

from typing import Final

from kube.kinds.record import Kind
from kube.kinds.volcano import JOB

KIND: Final = Kind(
    resource=JOB,
    capabilities=frozenset(
        {
            "hyperparameters",
            "attempt_deadline_seconds",
            "success: all",
            "fatal_exit_codes",
            "state: stopped",
            "steps",
            "schedule",
        }
    ),
    objects="Volcano Job with plugin `tensorflow` (`TF_CONFIG`)",
    needs="Volcano",
    image_needs="TensorFlow",
    program="examples.tensorflow",
    service="several pods",
)
