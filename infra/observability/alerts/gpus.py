"""GPUs that idle, fail or are full, as NVIDIA's DCGM exporter tells."""

from infra.observability.recording import GPUS_UNHEALTHY
from infra.observability.rule import Alert
from infra.settings.monitoring import Thresholds

_POD = "{{ $labels.namespace }}/{{ $labels.pod }}"
_XID = "max by (Hostname, gpu) (DCGM_FI_DEV_XID_ERRORS{})"
_GPU = "GPU {{ $labels.gpu }} of {{ $labels.Hostname }}"


def alerts(limits: Thresholds) -> list[Alert]:
    """The alerts."""
    return [
        Alert(
            name="AllocatedGpuIdle",
            expr=f'avg by (namespace, pod, gpu, Hostname) (DCGM_FI_DEV_GPU_UTIL{{pod!=""}}) '
            f"< {limits.gpu_idle_share * 100:g}",
            minutes=limits.gpu_idle_minutes,
            severity="warning",
            summary=f"{_GPU} is taken by {_POD} and idle",
            does="See what the run waits for (python -m gitops status); end what is forgotten.",
        ),
        Alert(
            name="GpuXidError",
            # The exporter keeps the last error until it is restarted, also while one pod after
            # another gets the GPU.
            expr="DCGM_FI_DEV_XID_ERRORS > 0 unless on (Hostname, gpu) "
            f"{_XID.format('')} == {_XID.format(' offset 15m')}",
            minutes=0,
            severity="critical",
            summary=f"{_GPU} reports Xid {{{{ $value }}}}",
            does="Look the number up in NVIDIA's list of Xid errors; cordon the node when it is "
            "one of hardware.",
        ),
        Alert(
            name="GpuUnhealthy",
            expr=f"{GPUS_UNHEALTHY} > 0",
            minutes=limits.gpu_unhealthy_minutes,
            severity="warning",
            summary="{{ $value }} GPUs of {{ $labels.node }} are given to nobody",
            does="Its device plugin calls them unhealthy: read the plugin's log.",
        ),
        Alert(
            name="GpuMemoryNearlyFull",
            expr="DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) "
            f"> {limits.gpu_memory_share:g}",
            minutes=limits.memory_minutes,
            severity="info",
            summary=f"The memory of {_GPU} is nearly full ({_POD})",
            does="Lower batch_size, or set accumulate, checkpoint_activations or a lower "
            "precision before a larger batch ends the run.",
        ),
    ]
