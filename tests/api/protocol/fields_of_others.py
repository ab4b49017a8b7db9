"""The fields of the request models of SGLang and vLLM, as their public sources list them, by route."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SGLANG_VERSION = "0.5.23"
VLLM_VERSION = "0.32"


@dataclass(frozen=True)
class RequestModel:
    """A request that this server and at least one of SGLang and vLLM serve."""

    location: str
    """Path of the route, or ``sampling_params``, which is part of the body of ``/generate``."""
    schema: str
    """Name of the schema of the body at this server."""
    body: Mapping[str, Any]
    """A body that passes validation."""
    sglang: str
    """Fields of SGLang, including some of later versions; empty if SGLang has no such request."""
    vllm: str
    """Fields of vLLM."""

    @property
    def names(self) -> list[str]:
        """Return the fields of both servers without duplicates, in alphabetic order."""
        return sorted({*self.sglang.split(), *self.vllm.split()})


REQUESTS = (
    RequestModel(
        location="/v1/chat/completions",
        schema="ChatBody",
        body={"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
        sglang="""
            bootstrap_host bootstrap_port bootstrap_room cache_salt chat_template_kwargs
            continue_final_message custom_logit_processor custom_params data_parallel_rank
            disagg_prefill_dp_rank ebnf extra_key frequency_penalty ignore_eos images_config input_ids
            logit_bias logprobs lora_path max_completion_tokens max_dynamic_patch max_tokens messages
            min_dynamic_patch min_p min_tokens mm_processor_kwargs model n ngram_corpus_id no_stop_trim
            parallel_tool_calls presence_penalty priority reasoning reasoning_effort regex
            repetition_penalty response_format return_cached_tokens_details
            return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 return_hidden_states
            return_input_ids_in_sglext return_meta_info return_output_ids_in_sglext return_prompt_token_ids
            return_routed_experts return_sampling_mask return_spec_tokens_details return_token_ids rid
            routed_dp_rank routed_experts_start_len sampling_logprobs_mode seed separate_reasoning
            session_id session_params skip_special_tokens stop stop_regex stop_token_ids stream
            stream_options stream_reasoning task temperature thinking tool_choice tools top_k top_logprobs
            top_p use_audio_in_video user video_config watermark
        """,
        vllm="""
            add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template
            chat_template_kwargs continue_final_message documents ec_transfer_params echo frequency_penalty
            ignore_eos include_reasoning include_stop_str_in_output kv_transfer_params length_penalty
            logit_bias logprob_token_ids logprobs max_completion_tokens max_tokens media_io_kwargs messages
            min_p min_tokens mm_payload mm_processor_kwargs model n parallel_tool_calls presence_penalty
            priority prompt_logprobs reasoning_effort repetition_detection repetition_penalty request_id
            response_format return_mm_kwargs return_prompt_text return_token_ids return_token_offsets
            return_tokens_as_token_ids routed_experts_prompt_start seed session_id skip_special_tokens
            spaces_between_special_tokens stop stop_token_ids stream stream_interval stream_options
            structured_outputs temperature thinking_token_budget tool_choice tools top_k top_logprobs top_p
            truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs watermarking
        """,
    ),
    RequestModel(
        location="/v1/completions",
        schema="CompletionBody",
        body={"prompt": "Hi", "max_tokens": 1},
        sglang="""
            best_of bootstrap_host bootstrap_port bootstrap_room cache_salt custom_labels
            custom_logit_processor custom_params data_parallel_rank disagg_prefill_dp_rank ebnf echo
            extra_key frequency_penalty ignore_eos images_config json_schema logit_bias logprobs lora_path
            max_tokens min_p min_tokens mm_processor_kwargs model n ngram_corpus_id no_stop_trim
            presence_penalty priority prompt regex repetition_penalty response_format
            return_cached_tokens_details return_hidden_states return_routed_experts
            return_spec_tokens_details return_token_ids rid routed_dp_rank routed_experts_start_len seed
            session_id session_params skip_special_tokens stop stop_regex stop_token_ids stream
            stream_options suffix temperature top_k top_p user watermark
        """,
        vllm="""
            add_special_tokens allowed_token_ids bad_words cache_salt ec_transfer_params echo
            frequency_penalty ignore_eos include_stop_str_in_output kv_transfer_params length_penalty
            logit_bias logprob_token_ids logprobs max_tokens min_p min_tokens mm_payload model n
            presence_penalty priority prompt prompt_embeds prompt_logprobs repetition_detection
            repetition_penalty request_id response_format return_mm_kwargs return_token_ids
            return_token_offsets return_tokens_as_token_ids routed_experts_prompt_start seed session_id
            skip_special_tokens spaces_between_special_tokens stop stop_token_ids stream stream_interval
            stream_options structured_outputs suffix temperature thinking_token_budget top_k top_p
            truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs watermarking
        """,
    ),
    RequestModel(
        location="/v1/responses",
        schema="ResponsesBody",
        body={"input": "Hi", "max_output_tokens": 1},
        sglang="""
            background bootstrap_host bootstrap_port bootstrap_room cache_salt chat_template_kwargs
            data_parallel_rank disagg_prefill_dp_rank extra_key frequency_penalty include input instructions
            max_output_tokens max_tool_calls metadata min_p model ngram_corpus_id parallel_tool_calls
            presence_penalty previous_response_id priority reasoning repetition_penalty request_id
            routed_dp_rank service_tier session_id stop store stream temperature text tool_choice tools
            top_k top_logprobs top_p truncation user
        """,
        vllm="""
            background cache_salt chat_template_kwargs ec_transfer_params enable_response_messages
            frequency_penalty ignore_eos include include_reasoning include_stop_str_in_output input
            instructions kv_transfer_params logit_bias max_output_tokens max_tool_calls media_io_kwargs
            metadata min_p mm_payload mm_processor_kwargs model parallel_tool_calls presence_penalty
            previous_input_messages previous_response previous_response_id priority prompt prompt_cache_key
            reasoning repetition_penalty request_id return_mm_kwargs seed service_tier session_id
            skip_special_tokens stop stop_token_ids store stream structured_outputs temperature text
            tool_choice tools top_k top_logprobs top_p truncation user vllm_xargs watermarking
        """,
    ),
    RequestModel(
        location="/generate",
        schema="GenerateBody",
        body={"text": "Hi", "sampling_params": {"max_new_tokens": 1}},
        sglang="""
            audio_data background bootstrap_host bootstrap_pair_key bootstrap_port bootstrap_room
            cache_salt conversation_id custom_labels custom_logit_processor data_parallel_rank
            decode_tp_size disagg_prefill_dp_rank encoder_urls external_trace_header extra_key
            http_worker_ipc image_data image_max_dynamic_patch images_config input_embeds input_ids
            kv_hints kv_router_hint log_metrics logprob_start_len lora_id lora_path
            max_dynamic_patch max_thinking_tokens min_dynamic_patch mm_content_hashes mm_hashes
            mm_processor_kwargs modalities multi_item_delimiter_indices need_wait_for_mm_inputs
            no_logs num_items_assigned positional_embed_overrides priority received_time
            require_reasoning return_bytes return_entropy return_flat_raw_output_top_logprobs
            return_flat_raw_top_logprobs return_flat_raw_top_logprobs_b64 return_hidden_states
            return_indexer_topk return_logprob return_prompt_token_ids return_routed_experts
            return_sampling_mask return_text_in_logprobs rid routed_dp_rank routed_experts_start_len
            routing_key sampling_logprobs_mode sampling_params session_id session_params stream text
            token_ids_logprob token_indices_to_pool top_logprobs_num use_audio_in_video video_config
            video_data video_max_dynamic_patch watermark
        """,
        vllm="",
    ),
    RequestModel(
        location="sampling_params",
        schema="SamplingBody",
        body={},
        sglang="""
            beam_width custom_params ebnf frequency_penalty ignore_eos json_schema logit_bias max_new_tokens
            min_new_tokens min_p n no_stop_trim presence_penalty regex repetition_penalty sampling_seed
            skip_special_tokens spaces_between_special_tokens stop stop_regex stop_token_ids stream_interval
            structural_tag temperature top_k top_p watermark
        """,
        vllm="",
    ),
    RequestModel(
        location="/encode",
        schema="PoolBody",
        body={"text": "Hi"},
        sglang="""
            audio_data background decision_layout dimensions embed_override_token_id embed_overrides
            external_trace_header http_worker_ipc image_data input_embeds input_ids
            is_cross_encoder_request log_metrics lora_id lora_path modalities
            multi_item_delimiter_indices positional_embed_overrides priority received_time
            return_pooled_hidden_states return_prompt_token_ids rid routing_key sampling_params text
            token_indices_to_pool video_data
        """,
        vllm="",
    ),
    RequestModel(
        location="/v1/embeddings",
        schema="EmbeddingsBody",
        body={"input": "Hi"},
        sglang="""
            dimensions embed_override_token_id embed_overrides encoding_format input lora_path model
            priority rid user
        """,
        vllm="""
            add_generation_prompt add_special_tokens cache_salt chat_template chat_template_kwargs
            continue_final_message dimensions embed_dtype encoding_format endianness input media_io_kwargs
            messages mm_processor_kwargs model padding priority request_id truncate_prompt_tokens
            truncation_side use_activation user
        """,
    ),
    RequestModel(
        location="/v1/classify",
        schema="ClassifyBody",
        body={"input": "Hi"},
        sglang="""
            input model priority rid user
        """,
        vllm="""
            add_generation_prompt add_special_tokens cache_salt chat_template chat_template_kwargs
            continue_final_message input media_io_kwargs messages mm_processor_kwargs model padding priority
            request_id truncate_prompt_tokens truncation_side use_activation user
        """,
    ),
    RequestModel(
        location="/v1/rerank",
        schema="RerankBody",
        body={"query": "Hi", "documents": ["Ho"]},
        sglang="""
            documents instruct query return_documents top_n
        """,
        vllm="""
            cache_salt chat_template_kwargs documents instruction max_tokens_per_doc max_tokens_per_query
            mm_processor_kwargs model padding priority query request_id top_n truncate_prompt_tokens
            truncation_side use_activation user
        """,
    ),
    RequestModel(
        location="/v1/score",
        schema="ScoreBody",
        body={"text_1": "Hi", "text_2": "Ho"},
        sglang="""
            apply_softmax embed_override_token_id item_embed_overrides item_first items label_token_ids
            model query query_embed_overrides return_pooled_hidden_states return_token_logprobs
            score_extraction_token temperature
        """,
        vllm="""
            cache_salt chat_template_kwargs data_1 data_2 documents instruction items max_tokens_per_doc
            max_tokens_per_query mm_processor_kwargs model padding priority queries request_id text_1 text_2
            truncate_prompt_tokens truncation_side use_activation user
        """,
    ),
    RequestModel(
        location="/tokenize",
        schema="TokenizeBody",
        body={"prompt": "Hi"},
        sglang="""
            add_generation_prompt add_special_tokens chat_template_kwargs continue_final_message messages
            model prompt reasoning_effort tool_choice tools
        """,
        vllm="""
            add_generation_prompt add_special_tokens chat_template chat_template_kwargs
            continue_final_message media_io_kwargs messages mm_processor_kwargs model prompt
            return_token_strs tools
        """,
    ),
    RequestModel(
        location="/detokenize",
        schema="DetokenizeBody",
        body={"tokens": [1]},
        sglang="""
            model skip_special_tokens tokens
        """,
        vllm="""
            model tokens
        """,
    ),
    RequestModel(
        location="/v1/messages",
        schema="AnthropicBody",
        body={"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]},
        sglang="""
            betas bootstrap_host bootstrap_port bootstrap_room disagg_prefill_dp_rank max_tokens messages
            metadata model output_config routed_dp_rank stop_sequences stream system temperature thinking
            tool_choice tools top_k top_p
        """,
        vllm="""
            cache_salt chat_template_kwargs ec_transfer_params kv_transfer_params max_tokens messages
            metadata mm_payload model output_config return_mm_kwargs stop_sequences stream system
            temperature thinking tool_choice tools top_k top_p vllm_xargs watermarking
        """,
    ),
    RequestModel(
        location="/v1/messages/count_tokens",
        schema="AnthropicCountBody",
        body={"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
        sglang="""
            betas messages model output_config system thinking tool_choice tools
        """,
        vllm="""
            chat_template_kwargs messages model output_config system thinking tool_choice tools
        """,
    ),
    RequestModel(
        location="/separate_reasoning",
        schema="SeparateReasoningBody",
        body={"text": "Hi"},
        sglang="""
            reasoning_parser return_blocks rid text
        """,
        vllm="",
    ),
    RequestModel(
        location="/parse_function_call",
        schema="ParseCallsBody",
        body={"text": "Hi"},
        sglang="""
            rid text tool_call_parser tools
        """,
        vllm="",
    ),
    RequestModel(
        location="/abort_request",
        schema="AbortBody",
        body={"rid": "none"},
        sglang="""
            abort_all abort_message finished_reason rid weight_versions
        """,
        vllm="",
    ),
    RequestModel(
        location="/load_lora_adapter",
        schema="LoadAdapterBody",
        body={"lora_name": "none", "lora_path": "none"},
        sglang="""
            lora_id lora_name lora_path pinned rid
        """,
        vllm="""
            is_3d_lora_weight load_inplace lora_name lora_path
        """,
    ),
    RequestModel(
        location="/unload_lora_adapter",
        schema="UnloadAdapterBody",
        body={"lora_name": "none"},
        sglang="""
            lora_id lora_name rid
        """,
        vllm="""
            lora_int_id lora_name
        """,
    ),
    RequestModel(
        location="/update_weights_from_disk",
        schema="UpdateWeightsBody",
        body={"model_path": "none"},
        sglang="""
            abort_all_requests flush_cache is_async keep_pause load_format manifest model_path
            recapture_cuda_graph rid token_step torch_empty_cache weight_version
        """,
        vllm="",
    ),
    RequestModel(
        location="/update_weight_version",
        schema="WeightVersionBody",
        body={"new_version": "default"},
        sglang="""
            abort_all_requests new_version rid
        """,
        vllm="",
    ),
)

ALIASES = {"queries": "text_1", "data_1": "text_1", "documents": "text_2", "data_2": "text_2"}
"""Other names of fields of ``ScoreBody``."""

HARMLESS = {
    "not part of an answer": "user service_tier prompt_cache_key metadata store max_tool_calls",
    "an id or a label": "rid session_id request_id conversation_id custom_labels routing_key token_step",
    "a hint where to compute": "routed_dp_rank data_parallel_rank disagg_prefill_dp_rank kv_router_hint kv_hints",
    "about caches and drafts, which change no answer": """
        ngram_corpus_id mm_hashes mm_content_hashes cache_salt flush_cache torch_empty_cache recapture_cuda_graph
    """,
    "about logs and traces": "log_metrics no_logs external_trace_header",
    "a note between that server's own processes": "received_time http_worker_ipc num_items_assigned",
    "belongs to a field that is refused": "routed_experts_start_len routed_experts_prompt_start",
    "a field of other routes there": "return_token_offsets return_mm_kwargs background sampling_params",
    "how text is sent": "stream_interval spaces_between_special_tokens",
    "says what image_data holds": "modalities",
    "shapes of adapters are read from their files": "is_3d_lora_weight",
    "features need not be switched on": "betas",
}
"""Fields that are accepted without effect, because they cannot change an answer, by reason."""
