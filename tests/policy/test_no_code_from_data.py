"""No data can be executed as code: no pickle, no ``eval``, no ``torch.load`` of more than tensors."""

from __future__ import annotations

import ast
from typing import Any

MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec", "os.system"}
TENSOR_FILES = {"torch.load", "torch.save"}
RECORDS = {
    "builtin_backends/sglang_plug_backends/expert_recorder/recorder.py",
    "builtin_backends/sglang_plug_backends/expert_recorder/tensor_files.py",
}
"""The only files that may write and read tensors in torch's own format, which others ask of them."""
TRUSTING = {"trust_remote_code": True, "shell": True}


def test_no_module_that_runs_what_it_reads(sources: list[Any]) -> None:
    for source in sources:
        assert not {name.partition(".")[0] for name in source.imports()} & MODULES, source.path


def test_no_call_that_runs_what_it_is_given(sources: list[Any]) -> None:
    for source in sources:
        for call in (node for node in ast.walk(source.tree) if isinstance(node, ast.Call)):
            location = f"{source.path}:{call.lineno}"
            assert ast.unparse(call.func) not in CALLS, location
            for keyword in call.keywords:
                trusting = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                assert not (trusting and keyword.arg in TRUSTING), location


def test_tensor_files_are_for_the_expert_recorder_and_hold_tensors_alone(sources: list[Any]) -> None:
    calls = []
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in TENSOR_FILES:
                assert source.path.as_posix() in RECORDS, f"{source.path}:{node.lineno}"
            if isinstance(node, ast.ImportFrom) and node.module in ("torch", "torch.serialization"):
                assert not {alias.name for alias in node.names} & {"load", "save"}, f"{source.path}:{node.lineno}"
            if isinstance(node, ast.Call) and ast.unparse(node.func) in TENSOR_FILES:
                calls.append(
                    (ast.unparse(node.func), {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords})
                )
    assert sorted(name for name, _ in calls) == sorted(TENSOR_FILES)
    assert all(keywords.get("weights_only") == "True" for name, keywords in calls if name == "torch.load")
