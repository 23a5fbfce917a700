"""vLLM: language models behind an OpenAI-compatible API. Not tested on a GPU.

The argument names below come from the wheel of the release in `Vllm.release`: from its engine
argument parser, and from the fields of its front-end arguments.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from pydantic import Field

from infra.serving.runtimes.runtime import (
    LATENCY,
    QUEUE,
    REQUESTS,
    SUM_BY_POD,
    Endpoints,
    Launch,
    ProgramArguments,
    Source,
)

_FLAGS: Final = """
    aggregate_engine_logging allow_credentials allow_deprecated_quantization
    async_scheduling cohere_is_reasoning_model cudagraph_metrics data_parallel_external_lb
    data_parallel_hybrid_lb data_parallel_multi_port_external_lb dcp_q_replicate
    disable_cascade_attn disable_chunked_mm_input disable_custom_all_reduce
    disable_fastapi_docs disable_hybrid_kv_cache_manager disable_log_stats
    disable_nccl_for_dp_synchronization disable_sliding_window disable_uvicorn_access_log
    enable_auto_tool_choice enable_batch_sharded_sampling enable_chunked_prefill
    enable_cumem_allocator enable_dbo enable_elastic_ep enable_ep_weight_filter enable_eplb
    enable_expert_parallel enable_fault_tolerance enable_flash_late_interaction
    enable_flashinfer_autotune enable_force_include_usage enable_hc_sp
    enable_layerwise_nvtx_tracing enable_log_deltas enable_log_outputs enable_log_requests
    enable_logging_iteration_details enable_lora enable_mamba_cache_stochastic_rounding
    enable_mamba_shared_prefix_checkpoint enable_mfu_metrics enable_mixed_moe_lora_format
    enable_mm_embeds enable_moe_shared_loras enable_nccl_comm_suspend enable_offline_docs
    enable_per_request_metrics enable_prefix_caching enable_prompt_embeds
    enable_prompt_tokens_details enable_request_id_headers enable_return_routed_experts
    enable_scale_out enable_server_load_tracking enable_shm_tensor_arena enable_sleep_mode
    enable_ssl_refresh enable_tokenizer_info_endpoint enable_tower_connector_lora
    enable_trace_replay enforce_eager exclude_tools_when_tool_choice_none
    fail_on_environ_validation fully_sharded_loras grpc headless interleave_mm_strings
    jit_monitor_verbose kv_cache_metrics kv_sharing_fast_prefill language_model_only
    log_error_stack long_prefill_token_threshold_adaptive mm_device_do_normalize
    mm_encoder_only monokernel numa_bind ray_workers_use_nsight return_sampling_mask
    return_tokens_as_token_ids scheduler_reserve_full_isl skip_mm_profiling
    skip_tokenizer_init sleep_mode_offload_cudagraph specialize_active_lora
    swa_bounded_replay tokens_only trust_remote_code trust_request_chat_template
    trust_request_mm_kwargs use_fp64_gumbel use_replayssm use_tqdm_on_load
"""
_OPTIONS: Final = """
    additional_config all2all_backend allowed_headers allowed_local_media_path
    allowed_media_domains allowed_methods allowed_origins anthropic_disabled_thinking_effort
    api_key api_server_count attention_backend attention_config aux_output_config block_size
    chat_template chat_template_content_format code_revision cohere_format
    collect_detailed_traces compilation_config config config_format convert
    cp_kv_cache_interleave_size cpu_distributed_timeout_seconds cpu_offload_gb
    cpu_offload_params cudagraph_capture_sizes custom_histogram_buckets
    data_parallel_address data_parallel_backend data_parallel_rank data_parallel_rpc_port
    data_parallel_size data_parallel_size_local data_parallel_start_rank
    data_parallel_supervisor_port dbo_decode_token_threshold dbo_prefill_token_threshold
    dcp_comm_backend dcp_kv_cache_interleave_size decode_context_parallel_size
    default_chat_template_kwargs default_mm_loras device_ids device_memory_utilization
    diffusion_config disable_access_log_for_endpoints distributed_executor_backend
    distributed_timeout_seconds download_dir dp_supervisor_probe_failure_threshold
    dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s dp_sync_interval dtype
    ec_manager_config ec_transfer_config elastic_ep_max_dp_size engram_config eplb_config
    expert_placement_strategy fault_tolerance_config fingerprint_mode fingerprint_value
    gdn_prefill_backend generation_config gpu_memory_utilization grpc_port
    h11_max_header_count h11_max_incomplete_event_size hf_config_path hf_overrides hf_token
    host ignore_patterns io_processor_plugin ir_op_priority jit_monitor_mode
    kda_decode_backend kda_prefill_backend kernel_config kv_cache_dtype
    kv_cache_dtype_skip_layers kv_cache_memory_bytes kv_cache_metrics_sample
    kv_events_config kv_offloading_backend kv_offloading_size kv_transfer_config
    limit_mm_per_prompt linear_backend load_format log_config_file log_level logging_config
    logits_processors logprobs_mode long_prefill_token_threshold lora_dtype lora_modules
    lora_target_modules mamba_backend mamba_block_size mamba_cache_dtype mamba_cache_mode
    mamba_cache_philox_rounds mamba_ssm_cache_dtype mamba_ssu_algorithm master_addr
    master_port max_cpu_loras max_cudagraph_capture_size max_log_len max_logprobs
    max_lora_cls_labels max_lora_rank max_loras max_model_len max_num_active_seqs
    max_num_batched_tokens max_num_queued_reqs max_num_queued_tokens
    max_num_scheduled_tokens max_num_seqs max_parallel_loading_workers media_io_kwargs
    middleware mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_fp8_scale_path
    mm_encoder_fp8_scale_save_margin mm_encoder_fp8_scale_save_path mm_encoder_tp_mode
    mm_hasher_algorithm mm_ipc_gpu_memory_gb mm_processor_cache_gb mm_processor_cache_type
    mm_processor_device mm_processor_kwargs mm_shm_cache_max_object_size_mb mm_tensor_ipc
    model model_class_overrides model_impl model_loader_extra_config moe_backend nnodes
    node_rank num_gpu_blocks_override numa_bind_cpus numa_bind_nodes offload_backend
    offload_group_size offload_num_in_group offload_params offload_prefetch_step
    optimization_level otlp_traces_endpoint override_generation_config
    per_request_spec_decode_metrics performance_mode pipeline_parallel_size pooler_config
    port prefill_context_parallel_size prefill_schedule_interval
    prefix_cache_retention_interval prefix_caching_hash_algo prefix_match_unit
    profiler_config pt_load_map_location quantization quantization_config reasoning_config
    reasoning_effort_map reasoning_parser reasoning_parser_plugin renderer_num_workers
    replayssm_buffer_len response_role revision root_path runner safetensors_load_strategy
    safetensors_prefetch_block_size safetensors_prefetch_num_threads scheduler_cls
    scheduling_policy seed served_model_name show_hidden_metrics_for_version
    shutdown_timeout sleep_mode_backend sleep_preserve_parameter_names
    sparse_indexer_topk_backend spec_method spec_model spec_tokens speculative_config
    sse_keep_alive_interval ssl_ca_certs ssl_cert_reqs ssl_certfile ssl_ciphers ssl_keyfile
    stream_interval structured_outputs_config tensor_parallel_size tokenizer tokenizer_mode
    tokenizer_revision tool_call_parser tool_parser_plugin tool_server tool_strict_level
    ubatch_size uds uvicorn_log_level video_pruning_method video_pruning_rate
    watchdog_config watermark watermark_config weight_transfer_config worker_cls
    worker_extension_cls
"""
_TLS_ADVICE: Final = "leave it out: the route's Gateway terminates TLS"


class Vllm(ProgramArguments):
    """Arguments of `vllm serve`."""

    release: ClassVar[str] = "vLLM 0.33.0"
    flags: ClassVar[frozenset[str]] = frozenset(_FLAGS.split())
    options: ClassVar[frozenset[str]] = frozenset(_OPTIONS.split())
    negation: ClassVar[str | None] = "no-"
    repeated: ClassVar[frozenset[str]] = frozenset({"middleware"})
    json_lists: ClassVar[frozenset[str]] = frozenset(
        {"allowed_origins", "allowed_methods", "allowed_headers"}
    )
    sources: ClassVar[frozenset[Source]] = frozenset({"run", "claim", "hub", "artifact"})
    export: ClassVar[str] = "export/huggingface"
    managed: ClassVar[Mapping[str, str]] = {
        "model": "`job`, `sweep`, `run` or `source`",
        "served_model_name": "`model`",
        "revision": "`source.hub.revision`",
        "host": "",
        "uds": "",
        "port": "`port`",
        "config": "",
        "api_key": "`env_from.VLLM_API_KEY`",
        "grpc": "",
        "grpc_port": "",
        "headless": "",
        "node_rank": "",
        "master_addr": "",
        "ssl_certfile": _TLS_ADVICE,
        "ssl_keyfile": _TLS_ADVICE,
    }
    worker_arguments: ClassVar[tuple[str, ...]] = ("--headless",)
    recordings: ClassVar[Mapping[str, str]] = {
        # vLLM groups the status codes: 2xx, 4xx and 5xx.
        REQUESTS: "label_replace(sum by (namespace, service, pod, status) (http_requests_total), "
        '"code", "$1", "status", "(.*)")',
        LATENCY: "sum by (namespace, service, pod, le) (vllm:e2e_request_latency_seconds_bucket)",
        QUEUE: f"{SUM_BY_POD} (vllm:num_requests_waiting)",
    }

    tensor_parallel_size: int | None = Field(default=None, ge=1)
    pipeline_parallel_size: int | None = Field(default=None, ge=1)
    """Defaults to `nnodes`, because tensor parallelism needs the fast links within a node."""
    data_parallel_size: int = Field(default=1, ge=1)
    prefill_context_parallel_size: int = Field(default=1, ge=1)
    nnodes: int = Field(default=1, ge=1, le=64)
    """Number of pods per replica, each with `gpus` GPUs, preferably on different nodes. If
    there are several, they run as a LeaderWorkerSet."""
    shutdown_timeout: int = Field(default=20, ge=0, le=3600)
    """Time (s) to finish requests in flight after SIGTERM. With 0, vLLM's default, they
    are aborted."""

    def command(self, launch: Launch) -> list[str]:
        """Return the command with its arguments."""
        managed: dict[str, Any] = {
            "served-model-name": launch.model,
            "host": "0.0.0.0",  # noqa: S104  the pod's network namespace
            "port": launch.port,
            "shutdown-timeout": self.shutdown_timeout,
        }
        if launch.gpus:
            managed |= {
                "tensor-parallel-size": self._tensor_parallel(launch.gpus),
                "pipeline-parallel-size": self._pipeline_parallel,
                "data-parallel-size": self.data_parallel_size,
            }
        managed |= {
            name.replace("_", "-"): value
            for name, value in self.model_dump(exclude_unset=True, exclude_none=True).items()
            if name.endswith("_parallel_size") and name in type(self).model_fields
        }
        if self.nnodes > 1:
            # The LeaderWorkerSet's controller sets both variables.
            managed |= {
                "nnodes": self.nnodes,
                "node-rank": "$(LWS_WORKER_INDEX)",
                "master-addr": "$(LWS_LEADER_ADDRESS)",
            }
        if launch.revision is not None:
            managed["revision"] = launch.revision
        arguments = [f"--{name}={value}" for name, value in managed.items()]
        return ["vllm", "serve", launch.path, *arguments, *self.arguments()]

    def _tensor_parallel(self, gpus: int) -> int:
        return self.tensor_parallel_size or max(1, gpus * self.nnodes // self._non_tensor_parallel)

    @property
    def _non_tensor_parallel(self) -> int:
        sizes = self._pipeline_parallel, self.data_parallel_size, self.prefill_context_parallel_size
        return math.prod(sizes)

    @property
    def _pipeline_parallel(self) -> int:
        return self.pipeline_parallel_size or self.nnodes

    def environment(self, launch: Launch) -> dict[str, Any]:
        """Return the environment variables.

        The image's /etc/passwd has no entry for the pod's user, so without USER, PyTorch finds no
        cache directory.
        """
        address = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        return {
            "USER": "vllm",
            "VLLM_NO_USAGE_STATS": "1",
            **({"VLLM_HOST_IP": address} if self.nnodes > 1 else {}),
        }

    @property
    def nodes(self) -> int:
        """Number of pods per replica."""
        return self.nnodes

    @property
    def endpoints(self) -> Endpoints:
        """Paths and ports of the server."""
        return Endpoints(live="/health", ready="/health")

    def in_flight(self, labels: str) -> str:
        """Return a PromQL expression for the number of requests in flight (running or waiting)."""
        return f'{{__name__=~"vllm:num_requests_(running|waiting)",{labels}}}'

    @property
    def stop_seconds(self) -> Mapping[str, float]:
        """Maximum time (s) of each phase of the shutdown, keyed by the setting that limits it."""
        return {"shutdown_timeout": self.shutdown_timeout}

    def problem(self, gpus: int) -> str | None:
        """Return an error message if the parallel sizes do not match the replica's GPUs."""
        pipeline, data = self._pipeline_parallel, self.data_parallel_size
        if self.nnodes > 1 and (gpus == 0 or data > 1):
            return (
                f"sets nnodes to {self.nnodes} with gpus {gpus} and data_parallel_size {data}: a "
                "replica with several pods needs GPUs and holds one copy of the model; set gpus "
                "to at least 1 and data_parallel_size to 1, and raise replicas for more copies"
            )
        if gpus == 0:
            return None
        tensor, total = self._tensor_parallel(gpus), gpus * self.nnodes
        used = tensor * self._non_tensor_parallel
        if used == total:
            return None
        found = f"gpus is {gpus}" if self.nnodes == 1 else f"{self.nnodes} pods have {total}"
        context = self.prefill_context_parallel_size
        parts = f" x {context} (prefill_context_parallel_size)" if context > 1 else ""
        return (
            f"uses {tensor} (tensor_parallel_size) x {pipeline} (pipeline_parallel_size) x {data} "
            f"(data_parallel_size){parts} = {used} GPUs, but {found}: set sizes whose product is "
            f"{total}"
        )
