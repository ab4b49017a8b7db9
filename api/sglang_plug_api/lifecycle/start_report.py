"""Log lines at the start of a server: its options, its limits, and one block with each choice and its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_plug.config import AUTO
from sglang_plug.plugins.installed.discovery import DISTRIBUTION, DiscoveredPlugin
from sglang_plug.plugins.registry import Plugins
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.options.option import config_value
from sglang_plug_api.options.option_table import options
from sglang_plug_api.options.option_values import option_values

COMPONENTS = (
    ("attention", "attention"),
    ("kernels", "kernels"),
    ("quantization", "quantization"),
    ("grammar", "grammar backend"),
    ("prefix-cache", "prefix cache"),
    ("eviction", "eviction"),
    ("schedule", "scheduling"),
    ("executor", "executor"),
    ("tokenizer", "tokenizer"),
)
"""Kinds of components in the order of the block, with their titles."""
ALWAYS = frozenset({"quantization", "grammar"})
"""Kinds that have a line even if no component of them is in use."""
WIDTH = 16


def server_args_line(config: ServerConfig) -> str:
    """Return all options on one line, in the form in which SGLang logs them; secrets are hidden."""
    values = ", ".join(f"{key}={value!r}" for key, value in option_values(config).items())
    return f"server_args=ServerArgs({values})"


def limits_line(info: Mapping[str, Any]) -> str:
    """Return the limits of a started engine on one line, under the names that SGLang logs them with."""
    names = {
        "max_total_num_tokens": "max_total_tokens",
        "chunked_prefill_size": "chunked_prefill_size",
        "max_running_requests": "max_running_requests",
        "context_len": "context_length",
    }
    return ", ".join(f"{label}={info[key]}" for label, key in names.items() if key in info)


def start_report(config: ServerConfig, plugins: Plugins, info: Mapping[str, Any], model_name: str) -> str:
    """Return the block that states what was chosen, and why.

    Args:
        config: the options as the user gave them.
        plugins: all plugins that were found.
        info: the description that the started engine gives of itself.
        model_name: the name that clients use for the model.
    """
    lines = [f"  {title:<{WIDTH}} {text}" for title, text in _rows(config, plugins, info)]
    return "\n".join([f"Serving {model_name}", *lines])


def _rows(config: ServerConfig, plugins: Plugins, info: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    components = info["components"]
    model = config.engine.model
    named = "the embedded demo, as no model was named" if model.path == AUTO else model.path
    yield "model", f"{info['architecture']}{_reason(components.get('model'))}"
    yield "checkpoint", f"{info['checkpoint_path']} ({named})"
    yield "task", f"{', '.join(info['tasks'])} ({_flag('--task', model.task, 'the one that the model was made for')})"
    yield "device", f"{info['device']} ({_flag('--device', model.device, 'auto: CUDA if there is one')})"
    yield "dtype", f"{info['dtype']} ({_flag('--dtype', model.dtype, 'auto: from checkpoint and device')})"
    source = "given by --context-length" if model.context_length is not None else "from the checkpoint"
    yield "context length", f"{info['context_length']} tokens ({source})"
    for kind, title in COMPONENTS:
        if kind in components:
            yield title, f"{components[kind]['name']}{_reason(components[kind], _is_default(kind, config))}"
        elif kind in ALWAYS:
            yield title, "none"
    yield "KV cache", _kv_cache(config, info)
    yield "requests", f"at most {info['max_running_requests']} running, {info['max_queued_requests']} waiting"
    yield "plugins", _third_party(plugins)


def _flag(flag: str, value: str, otherwise: str) -> str:
    return otherwise if value == AUTO else f"given by {flag}"


def _is_default(kind: str, config: ServerConfig) -> bool:
    """Return whether the option that selects a kind names a component by default, and the user named no other one."""
    chosen = [option for option in options() if option.component == kind and option.field is not None]
    return any(
        option.default not in (None, AUTO) and option.default == config_value(config, option.field or "")
        for option in chosen
    )


def _reason(component: Mapping[str, str] | None, is_default: bool = False) -> str:
    """Return the reason for a component in brackets, and its owner if that is another distribution."""
    if component is None:
        return ""
    reason = "the default" if is_default else component.get("reason", "chosen")
    owner = "" if component["distribution"] == DISTRIBUTION else f", {component['distribution']} {component['version']}"
    return f" ({reason}{owner})"


def _kv_cache(config: ServerConfig, info: Mapping[str, Any]) -> str:
    tokens, cache = info["max_total_tokens"], config.engine.cache
    size = f"{tokens} tokens, {info['memory_usage']['kvcache']:.2f} GiB, {info['kv_cache_dtype']}"
    if cache.max_total_tokens is not None:
        return f"{size} (given by --max-total-tokens)"
    whole = info["max_running_requests"] * (info["context_length"] + info["page_size"])
    if tokens >= whole:
        return f"{size} (all running requests fit at full length)"
    return f"{size} (the memory that --mem-fraction-static leaves)"


def _third_party(plugins: Plugins) -> str:
    """Return the plugins of other distributions with their versions, and those that failed."""
    texts = [f"{plugin.name} ({plugin.origin})" for plugin in plugins.loaded if _is_third_party(plugin)]
    texts += [f"{failure.plugin.name} FAILED: {failure.message}" for failure in plugins.failures]
    return ", ".join(texts) or "only those of sglang-plug"


def _is_third_party(plugin: DiscoveredPlugin) -> bool:
    return plugin.distribution != DISTRIBUTION
