"""Write ``docs/models.md``: every model that the project declares, and the configurations that tests compare.

The rows come from the plugin registry. What was checked comes from the tests themselves: each module under
``tests/builtin_models`` has a table ``CASES`` of ``name: (architecture, configuration)``, and ``families()`` of
``tests/families.py`` lists the models that are served end to end. ``FAMILIES`` of ``tests/e2e/vision_families.py``
lists the vision-language models, which are compared with and without images, and served.

``--check`` writes nothing and fails if the page is not what would be written.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from generated_page import row as table_row
from generated_page import write_or_check
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from sglang_plug import Plugins
from sglang_plug.plugins.installed.discovery import DISTRIBUTION
from sglang_plug.plugins.specs import ModelSpec

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "models.md"

PAGE_TEXT = """\
# Models

<!-- Written by docs/generate_models.py from the plugin registry and the tests: edit those. -->

A checkpoint is served by the model that a plugin declares for its `architectures` entry. `sglang-plug plugins list`
shows yours too; [Write a plugin](write-a-plugin.md) describes how to add one.

*Compared* lists the configurations (random weights, small widths, float32) whose logits are compared with
transformers': one prompt, chunks, ragged batches, decoding. *Served* lists the shapes of real models that run
through the whole engine, where greedy tokens are equal and log-probabilities within 1e-4. For those *with images*, the
logits of texts and the image embeddings are compared with transformers'; they are served with one image, several and
none in one batch, in chunks, from the prefix cache and after a retraction. *Ranks* marks models that support
[tensor parallelism](tensor-parallelism.md).

| architecture | what it is | plugin | ranks | compared | served |
|---|---|---|---|---|---|
{native}

Models that embed, classify or rerank have no vocabulary to compare; tests of the whole engine compare their results.

| architecture | what it is | plugin | ranks | tasks |
|---|---|---|---|---|
{pooling}

## Models without their own plugin

`--model-impl` selects the implementation: `native` uses the table above, a name from the table below uses that
component for any architecture, and `auto`, the default, uses the table above if the architecture is in it and asks
the plugins otherwise.

| component | what it serves | plugin |
|---|---|---|
{generic}

`transformers` runs transformers' implementation of the model with this engine's attention and KV pool: continuous
batching, chunks, the prefix cache and retraction work as for any other model, but slower than with a native
implementation. It refuses, with one line, models that it would not serve correctly: attention that does not use
transformers' attention interface, states besides keys and values (Mamba), models that attend to later tokens. Where
layers differ in their key heads or widths, each gets the size of the widest layer in the KV pool. Attention sinks
work with the attention backends `torch` and `triton`. Before it serves, it compares two sequences, in chunks and in
one batch, with transformers' own results for each alone, and refuses the model if they differ.

`transformers-text` serves the decoder of checkpoints with image or audio input (Aya Vision, Idefics 2 and similar
ones) in the same way, for text only; the weights of other parts are not kept, and a prompt with images is refused. It
needs a causal class of transformers for the decoder (`text_config`).

`transformers-encoder`, `transformers-decoder` and `transformers-classifier` run models that embed, classify or
rerank, such as MPNet, DistilBERT, ModernBERT, DeBERTa or a Phi-3 with a scoring head, with transformers' own
attention: texts of one length are batched, without chunks or a prefix cache. The checkpoint's `modules.json` defines
the pooling; without it an encoder returns its first state and a decoder its last, normalized.

Compared, and served where named:

| architecture | compared | served |
|---|---|---|
{fallback}

## Linear biases

Bloom, MPT and the first Falcon models add a bias to attention that grows with distance (ALiBi). It is encoded in the
keys, as eight more numbers for each head, so that every attention backend supports it that accepts keys wider than
values: on a GPU Triton's kernels, not FlashInfer's. An FP8 KV pool would round the biases and is refused for these
models.

## Chunked attention

Most layers of Llama 4 attend within chunks of 8192 tokens. Where sequences may be longer (`max_position_embeddings`),
keys get eight more numbers that distinguish even from odd chunks, in addition to a window of a chunk's length: every
attention backend supports it that accepts keys wider than values.

## Attention sinks

gpt-oss needs an attention backend that returns the logarithm of the sum of exponentials: `torch` and `triton` do, and
on a GPU the latter is chosen.

## Contexts beyond the original length

Checkpoints with `longrope` (Phi-3 with 128k tokens, Phi-4-mini) have two lists of factors, for contexts up to the
original length and beyond. Transformers chooses by the length of each batch and recomputes a sequence when it
outgrows the original length. Here keys are shared between prompts and stay cached, so the choice is made once: a
server whose context length is within the original one uses the short list and produces transformers' outputs; any
other uses the long list for every sequence, as transformers does for long ones. Set `--context-length` to the
original length if you need no longer contexts.
"""


def load(path: Path) -> ModuleType:
    """Import a test module by its path. Tests import each other by their folders."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def compared(folders: Iterator[Path]) -> dict[str, list[str]]:
    """Return the names of the configurations that tests in ``folders`` compare, by architecture."""
    names: dict[str, list[str]] = {}
    for folder in sorted(folders):
        for path in sorted(folder.glob("test_*.py")):
            for name, case in getattr(load(path), "CASES", {}).items():
                names.setdefault(case[0], []).append(name)
    return names


def vision_models() -> dict[str, list[str]]:
    """Return the names of the compared and served models, by vision-language architecture."""
    names: dict[str, list[str]] = {}
    for name, family in load(TESTS / "e2e" / "vision_families.py").FAMILIES.items():
        names.setdefault(family.architecture, []).append(f"{name} with images")
    return names


def served() -> dict[str, list[str]]:
    """Return the names of the models that end-to-end tests serve, by architecture."""
    names: dict[str, list[str]] = {}
    for name, config in load(TESTS / "families.py").families().items():
        architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]
        names.setdefault(architecture, []).append(name)
    return names


def models() -> Iterator[tuple[ModelSpec, str]]:
    """Yield the models that the project itself declares: the spec, and the name of the plugin."""
    for component in Plugins.discover().all("model"):
        if component.plugin.distribution == DISTRIBUTION and isinstance(component.spec, ModelSpec):
            yield component.spec, component.plugin.name


def row(*cells: str) -> str:
    """Return a line of a table, with a dash in empty cells."""
    return table_row(*(cell or "–" for cell in cells))


def listed(names: list[str]) -> str:
    """Return names as the text of one cell; a name may contain commas."""
    return "; ".join(names)


def page() -> str:
    """Return the content of the page."""
    own = list(models())
    native = [(spec, plugin) for spec, plugin in own if "generate" in spec.tasks and not spec.generic]
    folders = [folder for folder in (TESTS / "builtin_models").iterdir() if folder.is_dir()]
    by_plugin = compared(folder for folder in folders if folder.name != "transformers_fallback")
    vision = vision_models()
    through = compared(folder for folder in folders if folder.name == "transformers_fallback")
    engine = served() | vision
    known = {spec.name for spec, _ in native}
    return PAGE_TEXT.format(
        native="\n".join(
            row(
                f"`{spec.name}`",
                spec.summary,
                f"`{plugin}`",
                "yes" if spec.parallel else "",
                listed(by_plugin.get(spec.name, []) + vision.get(spec.name, [])),
                listed(engine.get(spec.name, [])),
            )
            for spec, plugin in native
        ),
        pooling="\n".join(
            row(
                f"`{spec.name}`",
                spec.summary,
                f"`{plugin}`",
                "yes" if spec.parallel else "",
                ", ".join(sorted(spec.tasks)),
            )
            for spec, plugin in own
            if "generate" not in spec.tasks and not spec.generic
        ),
        generic="\n".join(row(f"`{spec.name}`", spec.summary, f"`{plugin}`") for spec, plugin in own if spec.generic),
        fallback="\n".join(
            row(f"`{name}`", listed(cases), listed([] if name in known else engine.get(name, [])))
            for name, cases in sorted(through.items())
        ),
    )


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page, __doc__))
