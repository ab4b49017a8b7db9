"""Write the generated parts of ``docs/kinds/*.md``, one page for each kind of components.

What is for a reader stands in the pages. The declaration, the contract, the example and its test come from docstrings
and from the templates of ``sglang-plug plugins new``. ``--check`` writes nothing and fails if a page is out of date.
"""

from __future__ import annotations

import ast
import copy
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from contract_source import SourceTree
from generate_contracts import Function, class_section, function_section
from generate_hooks import ROOT, anchor, docstring, field_table, hooks, kind_of, parse, returns, signature, specs
from generated_page import DOCS, with_blocks, write_or_check_pages

from sglang_plug.testing.installed.checks import CHECKS
from sglang_plug_api.scaffold.names import PluginNames
from sglang_plug_api.scaffold.rendering import component_name, render_plugin

FOLDER = DOCS / "kinds"
CONTRACTS: Mapping[str, tuple[str, ...]] = {
    "adapter": (
        "AdapterReader",
        "AdapterRequest",
        "AdaptableLayer",
        "RankShard",
        "Adapter",
        "LayerAdapter",
        "Joinable",
        "LowRankAdapter",
        "LowRank",
    ),
    "attention": (
        "AttentionBackend",
        "AttentionShape",
        "ForwardBatch",
        "KVPool",
        "Attention",
        "FusedStoreCapable",
        "LSECapable",
        "GraphCapable",
        "GraphRecorder",
        "ReplayCapable",
        "TokenReplay",
        "UnreadLengths",
    ),
    "checkpoint": ("CheckpointRequest", "Checkpoint", "KVScaleTensor"),
    "command": (),
    "deployment": ("EngineLaunch", "EngineClient", "EngineError", "ReplicaStatus", "ReplicaReply"),
    "drafter": ("Drafter", "SequenceDrafter"),
    "eviction": ("EvictionPolicy", "NodeStats"),
    "executor": ("Executor", "LaunchSpec", "RankGroup", "RankEndpoint", "Collectives"),
    "grammar": ("GrammarBackend", "Grammar", "Constraint", "Vocabulary", "ConstraintError"),
    "kernels": ("Kernels", "SamplingOptions", "QuantizedWeight"),
    "kv-store": ("KVStore", "KVTransferStore", "KVBlock", "KVBlockPart", "KVStoreStats", "KVStoreError"),
    "logits-processor": ("LogitsProcessor", "LogitsBatch", "ProcessorRequest", "LogitsRow", "ReasoningBlock"),
    "media-processor": (
        "MediaProcessorLoader",
        "MediaSource",
        "MediaLimits",
        "MediaProcessor",
        "MediaPrompt",
        "Media",
        "MediaArray",
        "MediaError",
    ),
    "model": ("Model", "BuildEnv", "ForwardBatch", "AttentionShape", "Attention", "SupportsImages", "StateShape"),
    "observer": ("Observer", "RequestEvent", "StepStats"),
    "prefix-cache": ("PrefixCache", "Match", "EvictionPolicy", "NodeStats"),
    "quantization": ("QuantizationRequest", "Quantization", "Matrix", "LinearScheme", "StoredTensor"),
    "reasoning-parser": ("OutputParser", "Text", "Reasoning", "ReasoningMarks", "ReasoningBlockMarks"),
    "route": (),
    "routing": ("RoutingPolicy", "ReplicaLoad", "CacheAwareRouting", "prefix_digests"),
    "schedule": ("SchedulePolicy", "Waiting", "AccountingPolicy", "TokenUsage", "PreemptivePolicy"),
    "step-extension": ("StepExtension", "ExtensionContext", "SequenceView", "ChunkView", "StepPlan", "ExtensionRanks"),
    "store": (
        "StoreContext",
        "Store",
        "ContentWriter",
        "StoreWrapper",
        "FileRecord",
        "BatchRecord",
        "LineResult",
        "TokenCounts",
        "Page",
        "ResponseStore",
        "ResponseRecord",
        "StorageError",
        "StorageBroken",
        "StorageUnavailable",
        "StorageFull",
        "FileInUse",
        "UnknownId",
        "ContentMissing",
    ),
    "tokenizer": ("TokenizerSource", "Tokenizer", "StreamDecoder", "TemplateError"),
    "tool-parser": ("OutputParser", "Text", "CallStart", "CallArguments", "CallEnd", "Constraint"),
    "weights": ("WeightLoader", "Checkpoint", "WeightError"),
}
"""The public classes on the page of each kind, in this order."""
EXAMPLE = PluginNames("example")
LANGUAGES = {".py": "python", ".json": "json", ".jsonl": "json"}


def declaration(kind: str) -> Iterator[str]:
    """Yield the hook, the spec and its own fields."""
    spec = next(spec for spec in specs(parse("plugins.specs")) if kind_of(spec) == kind)
    hook = next(hook for hook in hooks(parse("plugins.hookspecs")) if re.search(rf"\b{spec.name}\b", returns(hook)))
    yield f"Hook [`{signature(hook)}`](../hooks.md#{anchor(hook)}),"
    yield f"spec [`{spec.name}`](../hooks.md#{spec.name.lower()}).\n\n{docstring(spec)}"
    if table := field_table(spec):
        yield f"\nBesides the [fields of every spec](../hooks.md#specs):\n\n{table}"


def contract(kind: str, tree: SourceTree) -> Iterator[str]:
    """Yield the sections of the classes of a kind."""
    for name in CONTRACTS[kind]:
        yield from section(tree, f"sglang_plug.{name}")


def section(tree: SourceTree, name: str) -> Iterator[str]:
    """Yield the section of a public class or function under its public name."""
    node = copy.copy(tree.definitions[name].node)
    assert isinstance(node, ast.ClassDef | Function)
    node.name = name.rpartition(".")[2]
    if isinstance(node, ast.ClassDef):
        yield from class_section(node)
    else:
        yield function_section(node)


def example(kind: str) -> Iterator[str]:
    """Yield the files of the plugin that ``plugins new`` creates, without those that are the same for all kinds."""
    yield f"`sglang-plug plugins new {kind} example` writes a distribution with these files, and the tests of"
    yield f"sglang-plug install it and run its tests. The component is `{kind}:{component_name(kind, EXAMPLE)}`."
    for path, text in sorted(render_plugin(kind, EXAMPLE).items(), key=lambda item: _file_order(item[0])):
        if path.endswith(tuple(LANGUAGES)):
            language = LANGUAGES[Path(path).suffix]
            yield f'\n```{language} title="{path}"\n{text.rstrip()}\n```'


def _file_order(path: str) -> tuple[int, str]:
    """Sort the declaring module first, then the package, samples and tests."""
    names = ("__init__.py", "settings.py", "example.py")
    if path.startswith("tests/"):
        return 9, path
    if "/sample/" in path:
        return 8, path
    name = Path(path).name
    return ({"__init__.py": 0, "settings.py": 1, "example.py": 7}[name] if name in names else 2), path


def conformance(kind: str, tree: SourceTree) -> Iterator[str]:
    """Yield the conformance tests of a kind."""
    yield f"`sglang-plug plugins test kind:name` runs {' and '.join(f'`{name}`' for name in CHECKS[kind])}:\n"
    for name in CHECKS[kind]:
        yield from section(tree, f"sglang_plug.testing.{name}")


def page(kind: str, tree: SourceTree) -> str:
    """Return the page of a kind with its generated parts renewed."""
    blocks: dict[str, Callable[[], Iterator[str]]] = {
        "declaration": partial(declaration, kind),
        "contract": partial(contract, kind, tree),
        "example": partial(example, kind),
        "test": partial(conformance, kind, tree),
    }
    return with_blocks(FOLDER / f"{kind}.md", blocks)


def pages() -> dict[Path, Callable[[], str]]:
    """Return the program of every page."""
    tree = SourceTree(ROOT, ("sglang_plug", "sglang_plug.testing"))
    return {FOLDER / f"{kind}.md": partial(page, kind, tree) for kind in CONTRACTS}


if __name__ == "__main__":
    sys.exit(write_or_check_pages(pages(), __doc__, "generate_kinds.py"))
