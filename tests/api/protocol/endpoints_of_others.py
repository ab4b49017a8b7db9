"""The endpoints of SGLang and vLLM, as their public sources list them, and why some are not offered here."""

from __future__ import annotations

SGLANG = """
    / /abort_request /add_external_corpus /api/chat /api/generate /api/show /api/tags /begin_weight_update /classify
    /close_session /configure_logging /continue_generation /destroy_weights_update_group /detokenize
    /dump_expert_distribution_record /dumper/{method} /encode /end_weight_update /flush_cache /freeze_gc /generate
    /get_hicache_l3_cache_layout /get_load /get_model_info /get_remote_instance_transfer_engine_info /get_server_info
    /get_transfer_engine_info /get_weights_by_name /health /health_generate /hicache/storage-backend
    /hicache/storage-backend/clear /init_weights_send_group_for_remote_instance /init_weights_update_group
    /invocations /is_scaling_elastic_ep /list_external_corpora /load_lora_adapter /load_lora_adapter_from_tensors
    /metrics /model_info /open_session /parse_function_call /pause_generation /pd_role_switch /ping /ready
    /register_transfer_engine_info /release_memory_occupation /remote_instance_transfer_engine_info
    /remove_external_corpus /resume_memory_occupation /scale_elastic_ep /send_weights_to_remote_instance
    /separate_reasoning /server_info /set_internal_state /set_trace_level /slow_down /start_expert_distribution_record
    /start_profile /stop_expert_distribution_record /stop_profile /tokenize /unload_lora_adapter
    /update_weight_version /update_weights_from_disk /update_weights_from_distributed /update_weights_from_ipc
    /update_weights_from_tensor /v1/audio/transcriptions /v1/chat/completions /v1/classify /v1/completions
    /v1/decisions /v1/detokenize /v1/embeddings /v1/loads /v1/messages /v1/messages/count_tokens /v1/models
    /v1/models/{model} /v1/realtime /v1/rerank /v1/responses /v1/responses/{response_id}
    /v1/responses/{response_id}/cancel /v1/score /v1/systemone /v1/tokenize /vertex_generate /weights_checker
"""
"""Endpoints of SGLang 0.5.23."""

VLLM = """
    /abort_requests /classify /cohere/v2/chat /cohere/v2/chat/render /collective_rpc /detokenize /docs
    /fault_tolerance/apply /fault_tolerance/status /finish_weight_update /generative_scoring /get_world_size /health
    /inference/v1/generate /init_weight_transfer_engine /invocations /is_paused /is_scaling_elastic_ep /is_sleeping
    /kv_event_sources /load /metrics /pause /ping /pooling /ready /readyz /release_kv_cache_memory /rerank
    /reset_encoder_cache /reset_mm_cache /reset_prefix_cache /resume /scale_elastic_ep /score /server_info
    /shutdown_weight_transfer_engine /sleep /start_draft_weight_update /start_profile /start_weight_update
    /stop_profile /tokenize /tokenizer_info /update_weight_version /update_weights /v1/audio/transcriptions
    /v1/audio/translations /v1/chat/completions /v1/chat/completions/batch /v1/chat/completions/derender
    /v1/chat/completions/render /v1/completions /v1/completions/derender /v1/completions/render /v1/embeddings
    /v1/load_lora_adapter /v1/messages /v1/messages/count_tokens /v1/messages/render /v1/models /v1/realtime
    /v1/rerank /v1/responses /v1/responses/render /v1/responses/{response_id} /v1/responses/{response_id}/cancel
    /v1/score /v1/systemone /v1/unload_lora_adapter /v2/embed /v2/rerank /version /wake_up /weight_checker
    /weight_info
"""
"""Endpoints of vLLM 0.32, those of its development mode included."""

NOT_OFFERED = {
    "no audio is read or written": "/v1/audio/transcriptions /v1/audio/translations /v1/realtime",
    "weights are read from a folder, see `/update_weights_from_disk`": """
        /begin_weight_update /destroy_weights_update_group /end_weight_update /finish_weight_update
        /get_remote_instance_transfer_engine_info /get_transfer_engine_info /get_weights_by_name
        /init_weight_transfer_engine /init_weights_send_group_for_remote_instance /init_weights_update_group
        /load_lora_adapter_from_tensors /register_transfer_engine_info /remote_instance_transfer_engine_info
        /send_weights_to_remote_instance /shutdown_weight_transfer_engine /start_draft_weight_update
        /start_weight_update /update_weights_from_distributed /update_weights_from_ipc /update_weights_from_tensor
        /weight_checker /weight_info /weights_checker
    """,
    "a server does not change its size while it runs": """
        /get_world_size /is_scaling_elastic_ep /pd_role_switch /scale_elastic_ep /fault_tolerance/apply
        /fault_tolerance/status
    """,
    "memory is kept until the server ends": """
        /is_sleeping /release_kv_cache_memory /release_memory_occupation /resume_memory_occupation /sleep /wake_up
    """,
    "requests are not halted; an update of weights waits for them, or ends them": """
        /continue_generation /is_paused /pause /pause_generation /resume
    """,
    "sessions are not supported; send the whole conversation": "/close_session /open_session",
    "see `/metrics`, observers and `--log-level`": """
        /configure_logging /dumper/{method} /set_trace_level /start_profile /stop_profile
    """,
    "internals of the server are not changed by requests": "/collective_rpc /freeze_gc /set_internal_state /slow_down",
    "tiers of the prefix cache are chosen at start, with `--kv-store`": """
        /get_hicache_l3_cache_layout /hicache/storage-backend /hicache/storage-backend/clear
    """,
    "the plugin `sglang-plug-kv-events` publishes events over ZeroMQ": "/kv_event_sources",
    "drafts come from the request and from drafter plugins": """
        /add_external_corpus /list_external_corpora /remove_external_corpus
    """,
    "the API of a cloud or of another server; a route plugin can add it": """
        /api/chat /api/generate /api/show /api/tags /cohere/v2/chat /cohere/v2/chat/render /invocations /v2/embed
        /vertex_generate
    """,
    "rendering and parsing are `/tokenize`, `/parse_function_call` and `/separate_reasoning`": """
        /v1/chat/completions/derender /v1/chat/completions/render /v1/completions/derender /v1/completions/render
        /v1/messages/render /v1/responses/render
    """,
    "use `/abort_request`": "/abort_requests",
    "use `/encode`": "/pooling",
    "use `/flush_cache`": "/reset_encoder_cache /reset_mm_cache /reset_prefix_cache",
    "use `/generate` with `input_ids`": "/inference/v1/generate",
    "use `/v1/score` with `query`, `items` and `label_token_ids`": "/generative_scoring",
    "use `/v1/batches`, or several requests": "/v1/chat/completions/batch",
    "the tokenizer's files are in the checkpoint": "/tokenizer_info",
    "use structured outputs": "/v1/decisions /v1/systemone",
}
"""Endpoints that are not offered, by reason."""

RERANK_FORMS = (
    "a list, as SGLang's; `/v2/rerank`, `?format=jina`, Cohere's clients and bodies with `truncate_prompt_tokens` get "
    "an object, as vLLM's"
)
DIFFERENCES = {
    "/classify": "takes `text`, as SGLang's; vLLM's is `/v1/classify`",
    "/health": "never waits for the model; `/health_generate` does",
    "/docs": "the server's own page, which loads nothing from other hosts",
    "/ready": "503 also while the server stops",
    "/readyz": "as `/ready`",
    "/rerank": RERANK_FORMS,
    "/update_weights": "as `/update_weights_from_disk`; not vLLM's transfer between processes",
    "/v1/messages": "by a plugin: `pip install ./plugins/sglang-plug-anthropic` from a checkout",
    "/v1/messages/count_tokens": "by the plugin `sglang-plug-anthropic`",
    "/v1/rerank": RERANK_FORMS,
    "/dump_expert_distribution_record": "POST only",
    "/start_expert_distribution_record": "POST only",
    "/stop_expert_distribution_record": "POST only",
    "/v1/load_lora_adapter": "needs the admin key, if there is one",
    "/v1/unload_lora_adapter": "needs the admin key, if there is one",
}
"""The difference of each endpoint that this server offers in another form."""
