"""The construction of the extension that serves adapters, on rank 0 and on worker ranks."""

from __future__ import annotations

from sglang_plug import ConfigError, ExtensionContext, ModelSpec, StepExtension

from .adapters import Adapters
from .extension import Lora, WithoutAdapters
from .formats import adapter_reader
from .worker_rank import WorkerRankLora


def build(context: ExtensionContext) -> StepExtension | None:
    """Return the extension, which refuses adapters if they are not enabled; ``None`` where it has nothing to do.

    Raises ``ConfigError`` if the model cannot be served with adapters.
    """
    options, ranks = context.config.adapters, context.ranks
    if not (options.enabled or options.paths):
        return None if ranks.rank > 0 else WithoutAdapters()
    if not context.model.spec_as(ModelSpec).causal:
        raise ConfigError(f"{context.model} is an encoder, which takes no adapters yet")
    if options.max_per_batch < 1:
        raise ConfigError(f"--max-loras-per-batch must be at least 1, got {options.max_per_batch}")
    reader, device = adapter_reader(context.plugins), context.device
    adapters = Adapters(reader, device=device, dtype=context.dtype, max_loaded=options.max_loaded, ranks=ranks)
    if ranks.rank > 0:
        return WorkerRankLora(adapters)
    captures = device.type == "cuda" and not context.config.backends.disable_cuda_graph and ranks.size == 1
    return Lora(adapters, paths=options.paths, max_per_batch=options.max_per_batch, captures=captures)
