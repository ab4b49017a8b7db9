"""The fields of the request models of SGLang and vLLM, as their public sources list them, by route."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SAMPLED = """
    frequency_penalty logit_bias n presence_penalty seed stop stream stream_options temperature top_p user top_k min_p
    min_tokens repetition_penalty stop_token_ids ignore_eos skip_special_tokens response_format max_tokens
"""
SGLANG_GENERATION = f"""
    {SAMPLED} model return_hidden_states return_routed_experts routed_experts_start_len return_cached_tokens_details
    return_token_ids regex ebnf stop_regex no_stop_trim lora_path session_id session_params custom_params
    custom_logit_processor images_config bootstrap_host bootstrap_port bootstrap_room routed_dp_rank
    disagg_prefill_dp_rank data_parallel_rank rid extra_key cache_salt ngram_corpus_id priority
"""
VLLM_GENERATION = f"""
    {SAMPLED} model use_beam_search watermarking length_penalty include_stop_str_in_output
    spaces_between_special_tokens truncate_prompt_tokens truncation_side allowed_token_ids prompt_logprobs
    logprob_token_ids bad_words structured_outputs priority request_id session_id return_tokens_as_token_ids
    return_token_ids routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params
    ec_transfer_params vllm_xargs repetition_detection thinking_token_budget stream_interval
"""
CHAT = f"""
    {SGLANG_GENERATION} messages logprobs top_logprobs max_completion_tokens tools tool_choice parallel_tool_calls
    return_prompt_token_ids return_meta_info reasoning_effort reasoning task continue_final_message separate_reasoning
    stream_reasoning chat_template_kwargs max_dynamic_patch min_dynamic_patch use_audio_in_video input_ids
    {VLLM_GENERATION} include_reasoning echo add_generation_prompt add_special_tokens documents chat_template
    media_io_kwargs mm_processor_kwargs return_prompt_text
"""
COMPLETION = f"""
    {SGLANG_GENERATION} prompt best_of echo logprobs suffix json_schema custom_labels
    {VLLM_GENERATION} prompt_embeds add_special_tokens
"""
RESPONSES = """
    background include input instructions max_output_tokens max_tool_calls metadata model parallel_tool_calls
    previous_response_id reasoning service_tier store stream temperature text tool_choice tools top_logprobs top_p
    truncation user chat_template_kwargs request_id session_id priority extra_key cache_salt ngram_corpus_id
    frequency_penalty presence_penalty stop top_k min_p repetition_penalty
    logit_bias prompt skip_special_tokens include_stop_str_in_output prompt_cache_key mm_processor_kwargs
    enable_response_messages previous_input_messages previous_response structured_outputs seed ignore_eos vllm_xargs
"""
GENERATE = """
    rid session_id text input_ids input_embeds image_data video_data audio_data mm_hashes mm_content_hashes
    use_audio_in_video video_config sampling_params return_logprob logprob_start_len top_logprobs_num token_ids_logprob
    return_sampling_mask return_text_in_logprobs return_flat_raw_top_logprobs return_flat_raw_top_logprobs_b64 stream
    log_metrics return_hidden_states return_routed_experts routed_experts_start_len return_indexer_topk modalities
    session_params lora_path lora_id custom_logit_processor positional_embed_overrides bootstrap_host bootstrap_port
    bootstrap_room bootstrap_pair_key decode_tp_size routed_dp_rank data_parallel_rank disagg_prefill_dp_rank
    kv_router_hint routing_key conversation_id background require_reasoning max_thinking_tokens priority extra_key
    no_logs custom_labels return_entropy return_prompt_token_ids external_trace_header max_dynamic_patch
    min_dynamic_patch images_config multi_item_delimiter_indices cache_salt
"""
SAMPLING = """
    max_new_tokens stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty
    repetition_penalty min_new_tokens n beam_width json_schema regex ebnf structural_tag ignore_eos skip_special_tokens
    spaces_between_special_tokens no_stop_trim custom_params stream_interval logit_bias sampling_seed
"""
POOLING = """
    model user truncate_prompt_tokens padding truncation_side request_id priority mm_processor_kwargs cache_salt
    use_activation
"""
EMBEDDINGS = f"""
    {POOLING} input encoding_format dimensions rid lora_path embed_override_token_id embed_overrides add_special_tokens
    embed_dtype endianness messages chat_template media_io_kwargs
"""
CLASSIFY = f"{POOLING} input rid add_special_tokens messages chat_template"
RERANK = f"{POOLING} query documents instruct top_n return_documents max_tokens_per_doc rank_fields max_chunks_per_doc"
SCORE = f"""
    {POOLING} query items embed_override_token_id query_embed_overrides item_embed_overrides label_token_ids
    apply_softmax item_first return_pooled_hidden_states text_1 text_2 queries documents data_1 data_2
"""
TOKENIZE = """
    model prompt messages tools tool_choice reasoning_effort continue_final_message chat_template_kwargs
    add_special_tokens add_generation_prompt return_token_strs chat_template media_io_kwargs mm_processor_kwargs
"""
DETOKENIZE = "model tokens skip_special_tokens"

ROUTES: Mapping[str, tuple[str, dict[str, Any], str]] = {
    "/v1/chat/completions": ("ChatBody", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}, CHAT),
    "/v1/completions": ("CompletionBody", {"prompt": "Hi", "max_tokens": 1}, COMPLETION),
    "/v1/responses": ("ResponsesBody", {"input": "Hi", "max_output_tokens": 1}, RESPONSES),
    "/generate": ("GenerateBody", {"text": "Hi", "sampling_params": {"max_new_tokens": 1}}, GENERATE),
    "/v1/embeddings": ("EmbeddingsBody", {"input": "Hi"}, EMBEDDINGS),
    "/v1/classify": ("ClassifyBody", {"input": "Hi"}, CLASSIFY),
    "/v1/rerank": ("RerankBody", {"query": "Hi", "documents": ["Ho"]}, RERANK),
    "/v1/score": ("ScoreBody", {"text_1": "Hi", "text_2": "Ho"}, SCORE),
    "/tokenize": ("TokenizeBody", {"prompt": "Hi"}, TOKENIZE),
    "/detokenize": ("DetokenizeBody", {"tokens": [1]}, DETOKENIZE),
}
"""Path -> the body's schema, a body that is accepted, and the fields of the other servers' models."""

ALIASES = {"queries": "text_1", "data_1": "text_1", "documents": "text_2", "data_2": "text_2"}
"""Other names of fields of ``ScoreBody``."""

HARMLESS = {
    "bodies of any route": "user service_tier prompt_cache_key metadata store max_tool_calls",
    "ids and labels that no answer depends on": "session_id request_id conversation_id custom_labels routing_key",
    "hints where to compute": "routed_dp_rank data_parallel_rank disagg_prefill_dp_rank kv_router_hint",
    "caches and drafts, which change no answer": "ngram_corpus_id mm_hashes mm_content_hashes cache_salt",
    "logs and traces": "log_metrics no_logs external_trace_header",
    "what goes with a field that is refused": "routed_experts_start_len routed_experts_prompt_start",
    "fields of other routes, ignored on this one": "return_token_offsets return_mm_kwargs background",
    "how text is sent": "stream_interval spaces_between_special_tokens",
    "says what image_data holds": "modalities",
}
"""Reason -> fields that are accepted without effect, because they cannot change an answer."""
