"""The built-in models and backends use the public contract of the core, as plugins of others do."""

from __future__ import annotations

from collections.abc import Iterable

import sglang_plug
import sglang_plug.layers
from tests.policy.source_tree import Source

FOLDERS = ("builtin_models", "builtin_backends")
NON_PUBLIC = {
    "sglang_plug.contracts.model.batch.narrowed": "rounds keys as an FP8 KV pool does, without writing them to one",
    "sglang_plug.contracts.model.batch.widened": "reads an FP8 KV pool as the core does for images",
    "sglang_plug.contracts.model.kernels.rope_store": "defines an operation that Kernels() does not have by default",
    "sglang_plug.layers.linear.checked": "checks tensors of checkpoints with the message of the layers",
    "sglang_plug.layers.moe.NAMES": "are the usual names of an expert's matrices, which a model extends",
    "sglang_plug.layers.moe.Stacked": "holds the matrices of experts for a model whose checkpoint stores them stacked",
    "sglang_plug.ops.lora.add_low_rank": "defines an operation that Kernels() does not have by default",
    "sglang_plug.system.freed_memory.return_freed_memory": "is shared with the engine, which frees weights as well",
    "sglang_plug.system.private_folder.private_folder": "is shared with the client that starts engine processes",
    "sglang_plug.system.private_folder.scratch_folder": "removes what a killed compiler left, as private_folder does",
    "sglang_plug.system.torch_defaults.default_dtype": "changes a default of the process under the core's lock",
}
"""Names of the core that are not public and that built-in components import, with the reason; the list may only
shrink."""


def non_public(sources: Iterable[Source]) -> set[str]:
    """Return the names of the core that these modules import and that a plugin of others must not use."""
    public = {f"{package.__name__}.{name}" for package in (sglang_plug, sglang_plug.layers) for name in package.__all__}
    return {name for source in sources for name in source.imports() if name.startswith("sglang_plug.")} - public


def extension_folders(sources: Iterable[Source]) -> set[str]:
    """Return the folders whose ``__init__.py`` declares step extensions."""
    return {
        source.folder
        for source in sources
        if source.is_package and any(function.name == "register_step_extensions" for function in source.functions())
    }


def test_built_in_components_import_public_names(sources: list[Source]) -> None:
    assert non_public(source for source in sources if source.package in FOLDERS) == set(NON_PUBLIC)


def test_step_extensions_import_only_public_names(sources: list[Source]) -> None:
    folders = extension_folders(source for source in sources if source.package in FOLDERS)
    assert len(folders) > 5
    assert non_public(source for source in sources if source.folder in folders) == set()


def test_groups_of_engines_import_only_public_names(sources: list[Source]) -> None:
    replicas = [source for source in sources if source.folder.endswith("engine_clients/replicas")]
    assert len(replicas) > 5
    assert non_public(replicas) == set()


def test_an_import_below_the_package_is_reported(sources: list[Source]) -> None:
    declaring = next(source for source in sources if source.folder.endswith("sglang_plug_backends/lora"))
    text = "from sglang_plug import Model, config\nfrom sglang_plug.layers import Router\nimport sglang_plug.ops"
    assert non_public([Source(declaring.path, declaring.module, text)]) == {
        "sglang_plug.config",
        "sglang_plug.ops",
    }
