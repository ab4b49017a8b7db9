"""Write ``docs/models.md``: every model the installed project declares, and what tests compare with transformers.

The rows come from the plugin registry. What was checked comes from the tests themselves: each module under
``tests/builtin_models`` has a table ``CASES`` of ``name: (architecture, configuration)``, and ``families()`` of
``tests/conftest.py`` lists the models that are served end to end. ``FAMILIES`` of ``tests/e2e/seeing_families.py``
lists the models that see, which are compared with and without images, and served.

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
from sglang_plug.discovery import DISTRIBUTION
from sglang_plug.specs import ModelSpec

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "models.md"

PAGE_TEXT = """\
# Models

<!-- Written by docs/generate_models.py from the plugin registry and the tests: edit those. -->

A checkpoint is served by the model that a plugin declared under its `architectures` entry. `sglang-plug plugins list`
shows yours too; [write a plugin](write-a-plugin.md) tells how to add one.

*Compared* lists the configurations (random weights, small widths, float32) whose logits are compared with
transformers': one prompt, chunks, ragged batches, decoding. *Served* lists the shapes of real models that run
through the whole engine, where greedy tokens are equal and log-probabilities within 1e-4. Those *with images* are
compared on text, and what they see of images with what transformers' model sees; served with one image, several and
none in one batch, in chunks, from the prefix cache and after a retraction. *Ranks* marks those that
[several devices can share](tensor-parallelism.md).

| architecture | what it is | plugin | ranks | compared | served |
|---|---|---|---|---|---|
{native}

Models that embed, classify or rank have no vocabulary to compare; tests of the whole engine compare what they return.

| architecture | what it is | plugin | ranks | tasks |
|---|---|---|---|---|
{pooling}

## Without a plugin of its own

`--model-impl` says where a model's code comes from: `native` takes the table above, a name from the table below takes
that component for any architecture, and `auto`, the default, takes the first if the architecture is in it and asks the
plugins otherwise.

| component | what it serves | plugin |
|---|---|---|
{generic}

`transformers` runs the model's code of transformers with this engine's attention and KV pool: continuous batching,
chunks, the prefix cache and retraction work as for any other model, only slower than with a plugin. It turns away, in
one line, what would not be right: attention that does not go through transformers' attention interface, states besides
keys and values (Mamba), models that look ahead. Where layers differ in their key heads or widths, each gets the room of
the widest in the KV pool. Attention sinks are served with the attention backends `torch` and `triton`. Before it
serves, it compares two sequences in chunks and in one row with transformers' own result on each alone, and refuses if
they differ.

`transformers-text` serves the text of checkpoints that also see or hear (Aya Vision, Idefics 2 and the like) through
their decoder, in the same way; the weights of other parts are not kept, and a prompt with images is refused. It needs a
causal class of transformers for the decoder (`text_config`).

`transformers-encoder`, `transformers-decoder` and `transformers-classifier` run models that embed, classify or rank,
such as MPNet, DistilBERT, ModernBERT, DeBERTa or a Phi-3 with a score, with transformers' own attention: each text on
its own, those of one length together, without chunks or a prefix cache. How states become one vector stands in the
checkpoint's `modules.json`; without it an encoder gives its first state and a decoder its last, normalised.

Compared, and served where named:

| architecture | compared | served |
|---|---|---|
{fallback}

## Linear biases

Bloom, MPT and the first Falcon models add a bias to attention that grows with distance (ALiBi). Here it rides on the
keys, as eight more numbers of each head, so that every attention backend does it that takes keys wider than values: on
a GPU Triton's kernels, not FlashInfer's. A KV pool in FP8 would round the biases and is refused for them.

## Chunks

Most layers of Llama 4 look within chunks of 8192 tokens. Where sequences may be longer (`max_position_embeddings`),
keys get eight more numbers that tell an even chunk from an odd one, next to a window of a chunk's length: so every
attention backend does it that takes keys wider than values.

## Sinks

gpt-oss needs an attention backend that can tell what a query's attention weighs: `torch` and `triton` can, and on a GPU
the latter is chosen.

## Contexts beyond the original length

Checkpoints with `longrope` (Phi-3 with 128k tokens, Phi-4-mini) have two lists of factors, for contexts up to the
original length and beyond. Transformers chooses by the length of each batch and computes a sequence anew when it
outgrows the original length. Here keys are shared between prompts and stay cached, so the choice is made once: a server
whose context length is within the original one uses the short list and gives transformers' outputs; any other uses the
long list for every sequence, as transformers does for long ones. Add `--context-length` with the original length if
you need no longer contexts.
"""


def load(path: Path) -> ModuleType:
    """A test module, by its path. Tests import each other by their folders."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def compared(folders: Iterator[Path]) -> dict[str, list[str]]:
    """For each architecture, the names of the configurations that tests in ``folders`` compare."""
    found: dict[str, list[str]] = {}
    for folder in sorted(folders):
        for path in sorted(folder.glob("test_*.py")):
            for name, case in getattr(load(path), "CASES", {}).items():
                found.setdefault(case[0], []).append(name)
    return found


def seeing() -> dict[str, list[str]]:
    """For each architecture that sees, the names of the models that are compared and served."""
    found: dict[str, list[str]] = {}
    for name, family in load(TESTS / "e2e" / "seeing_families.py").FAMILIES.items():
        found.setdefault(family.architecture, []).append(f"{name} with images")
    return found


def served() -> dict[str, list[str]]:
    """For each architecture, the names of the models that are served end to end."""
    found: dict[str, list[str]] = {}
    for name, config in load(TESTS / "conftest.py").families().items():
        architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]
        found.setdefault(architecture, []).append(name)
    return found


def models() -> Iterator[tuple[ModelSpec, str]]:
    """What the project itself declares: spec, and name of the plugin."""
    for one in Plugins.discover().all("model"):
        if one.found.distribution == DISTRIBUTION and isinstance(one.spec, ModelSpec):
            yield one.spec, one.found.name


def row(*cells: str) -> str:
    """A line of a table without empty cells."""
    return table_row(*(cell or "–" for cell in cells))


def listed(names: list[str]) -> str:
    """Names in one cell; they may hold commas."""
    return "; ".join(names)


def page() -> str:
    """The whole page."""
    own = list(models())
    native = [(spec, plugin) for spec, plugin in own if "generate" in spec.tasks and not spec.generic]
    folders = [one for one in (TESTS / "builtin_models").iterdir() if one.is_dir()]
    by_plugin = compared(one for one in folders if one.name != "transformers_fallback")
    sighted = seeing()
    through = compared(one for one in folders if one.name == "transformers_fallback")
    engine = served() | sighted
    known = {spec.name for spec, _ in native}
    return PAGE_TEXT.format(
        native="\n".join(
            row(
                f"`{spec.name}`",
                spec.summary,
                f"`{plugin}`",
                "yes" if spec.parallel else "",
                listed(by_plugin.get(spec.name, []) + sighted.get(spec.name, [])),
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
