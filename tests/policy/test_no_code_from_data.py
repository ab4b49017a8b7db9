"""Nothing that is read or received can become code: no pickle, no ``torch.load``, no ``eval``."""

from __future__ import annotations

import ast
from typing import Any

MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec", "torch.load", "torch.save", "os.system"}
TRUSTING = {"trust_remote_code": True, "shell": True}


def test_no_module_that_runs_what_it_reads(sources: list[Any]) -> None:
    for source in sources:
        assert not {name.partition(".")[0] for name in source.imports()} & MODULES, source.path


def test_no_call_that_runs_what_it_is_given(sources: list[Any]) -> None:
    for source in sources:
        for call in (node for node in ast.walk(source.tree) if isinstance(node, ast.Call)):
            place = f"{source.path}:{call.lineno}"
            assert ast.unparse(call.func) not in CALLS, place
            for keyword in call.keywords:
                trusting = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                assert not (trusting and keyword.arg in TRUSTING), place
