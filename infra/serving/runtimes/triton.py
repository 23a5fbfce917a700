"""Triton Inference Server with a model repository. Not tested on a GPU.

The option names below come from `src/command_line_parser.cc` of `Triton.release`.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from pydantic import Field

from infra.serving.runtimes.runtime import (
    QUEUE,
    REQUESTS,
    SUM_BY_POD,
    Endpoints,
    Launch,
    ProgramArguments,
    Source,
)

_FLAGS: Final = """
    disable_auto_complete_config
"""
_OPTIONS: Final = """
    allow_client_shm allow_cpu_metrics allow_gpu_metrics allow_grpc allow_http allow_metrics
    allow_sagemaker allow_vertex_ai backend_config backend_directory
    buffer_manager_thread_count cache_config cache_directory cuda_memory_pool_byte_size
    cuda_virtual_address_size enable_peer_access exit_on_error exit_timeout_secs
    grpc_address grpc_header_forward_pattern grpc_http2_max_ping_strikes
    grpc_http2_max_pings_without_data grpc_http2_min_recv_ping_interval_without_data
    grpc_infer_allocation_pool_size grpc_infer_response_compression_level
    grpc_infer_thread_count grpc_keepalive_permit_without_calls grpc_keepalive_time
    grpc_keepalive_timeout grpc_max_connection_age grpc_max_connection_age_grace
    grpc_max_response_pool_size grpc_port grpc_restricted_protocol grpc_root_cert
    grpc_server_cert grpc_server_key grpc_use_ssl grpc_use_ssl_mutual host_policy
    http_address http_header_forward_pattern http_max_input_size http_port
    http_restricted_api http_thread_count id load_model log_error log_file log_format
    log_info log_verbose log_warning metrics_address metrics_config metrics_interval_ms
    metrics_port min_supported_compute_capability model_config_name model_control_mode
    model_load_gpu_limit model_load_retry_count model_load_thread_count model_namespacing
    model_repository model_store pinned_memory_pool_byte_size rate_limit rate_limit_resource
    repoagent_directory repository_poll_secs response_cache_byte_size reuse_grpc_port
    reuse_http_port sagemaker_port sagemaker_safe_port_range sagemaker_thread_count
    strict_model_config strict_readiness trace_config trace_count trace_file trace_level
    trace_log_frequency trace_rate vertex_ai_default_model vertex_ai_port
    vertex_ai_thread_count
"""
_GRPC_PORT: Final = 8001
_METRICS_PORT: Final = 8002


class Triton(ProgramArguments):
    """Options of `tritonserver`."""

    release: ClassVar[str] = "Triton 2.71.0 (container 26.07)"
    flags: ClassVar[frozenset[str]] = frozenset(_FLAGS.split())
    options: ClassVar[frozenset[str]] = frozenset(_OPTIONS.split())
    repeated: ClassVar[frozenset[str]] = options
    sources: ClassVar[frozenset[Source]] = frozenset({"url", "claim", "artifact"})
    managed: ClassVar[Mapping[str, str]] = {
        "model_repository": "`url` or `source`",
        "model_store": "`url` or `source`",
        "http_port": "`port`",
        "http_address": "",
        "allow_http": "",
        "grpc_port": "",
        "grpc_address": "",
        "allow_grpc": "",
        "metrics_port": "",
        "metrics_address": "",
        "allow_metrics": "",
    }
    recordings: ClassVar[Mapping[str, str]] = {
        REQUESTS: f"label_replace({SUM_BY_POD} (nv_inference_request_success), "
        '"code", "200", "", "") or '
        f"label_replace({SUM_BY_POD} (nv_inference_request_failure), "
        '"code", "500", "", "")',
        QUEUE: f"{SUM_BY_POD} (nv_inference_pending_request_count)",
    }

    exit_timeout_secs: int = Field(default=20, ge=0, le=3600)

    def command(self, launch: Launch) -> list[str]:
        """Return the command with its arguments."""
        managed = {
            "model-repository": launch.path,
            "http-port": launch.port,
            "grpc-port": _GRPC_PORT,
            "metrics-port": _METRICS_PORT,
            "exit-timeout-secs": self.exit_timeout_secs,
        }
        arguments = [f"--{name}={value}" for name, value in managed.items()]
        return ["tritonserver", *arguments, *self.arguments()]

    def environment(self, launch: Launch) -> dict[str, str]:
        """Return the environment variables."""
        return {}

    @property
    def endpoints(self) -> Endpoints:
        """Paths and ports of the server."""
        return Endpoints(
            live="/v2/health/live",
            ready="/v2/health/ready",
            grpc_port=_GRPC_PORT,
            metrics_port=_METRICS_PORT,
        )

    def in_flight(self, labels: str) -> str:
        """Return a PromQL expression for the number of requests in flight.

        Triton has no gauge for this number. By Little's law, its average equals the request time
        accumulated per second.
        """
        return f"rate(nv_inference_request_duration_us{{{labels}}}[1m]) / 1e6"

    @property
    def stop_seconds(self) -> Mapping[str, float]:
        """Maximum time (s) of each phase of the shutdown, keyed by the setting that limits it."""
        return {"exit_timeout_secs": self.exit_timeout_secs}
