"""Print measurements of the source tree, no timings: ``python -m tests.policy.measure [--list]``."""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.policy.directions import forbidden_imports
from tests.policy.request_trace import RequestTrace, described_files, trace_chat_request
from tests.policy.source_tree import (
    ROOT,
    Source,
    distribution_sources,
    docstring_faults,
    import_cycles,
    import_graph,
    modules_per_folder,
    package_cycles,
    package_sources,
    script_sources,
)

ENGINE = "core/sglang_plug/engine"
FEATURES = {
    "images": re.compile(r"image|media|multimodal|(?<!re)vision", re.IGNORECASE),
    "grammars": re.compile(r"grammar|constraint|structured", re.IGNORECASE),
    "recurrent state": re.compile(r"recurrent|state_?(pool|rows|steps|shape)|held_?state", re.IGNORECASE),
    "ranks": re.compile(r"(^|_)ranks?($|_)|^Ranks?|collective|tensor_parallel|tp_size"),
    "adapters": re.compile(r"adapter|lora", re.IGNORECASE),
    "drafts": re.compile(r"draft|speculat", re.IGNORECASE),
    "graphs": re.compile(r"graph(?!lib)", re.IGNORECASE),
}
"""Patterns of the identifiers that mention a feature of the engine."""
PACKAGES = frozenset({"tensor_parallel"})
"""Folders of the engine that consist of one feature."""
REPRESENTATIONS = (
    "ChatBody ChatRequest Job Request Sequence ScheduledChunk ForwardBatch StepResult Output JobOutput"
).split()
"""Classes that represent one request, or its part in a step, on its way from HTTP to the answer; a list kept by hand.

The trace constructs more classes that hold a request or its tokens for a moment, such as calls and options: it is a
matter of judgement which of them represent the request. The chunk of the answer has no class.
"""
PATCHES = frozenset("setattr setitem setenv delattr delitem delenv syspath_prepend chdir context".split())
NO_CODE = frozenset(
    (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
)
"""Kinds of tokens that do not make a line one of code."""
MAX_LINES, FOLDER_MODULES = 60, 15

Row = tuple[str, object, Sequence[str]]
"""A measurement: its name, its value, and what was counted."""


def main() -> None:
    """Print the table; with ``--list`` also what was counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="also print what was counted")
    parser.add_argument("--no-request", action="store_true", help="serve no request to trace it, only read the tree")
    arguments = parser.parse_args()
    for name, value, counted in measurements(None if arguments.no_request else trace_chat_request):
        print(f"{name:<76}{value}")
        for entry in counted if arguments.list else ():
            print(f"    {entry}")


def measurements(trace: Callable[[], RequestTrace] | None) -> Iterator[Row]:
    """Yield every measurement of the tree."""
    sources = package_sources()
    yield from _sizes(sources)
    if trace is not None:
        yield from _request(trace())
    yield (
        "files that convert or hand on a chat request (docs/architecture.md)",
        len(described_files()),
        described_files(),
    )
    yield from _representations(sources)
    yield from _features(sources)
    yield from _objects(sources)
    yield from _imports(sources)
    yield from _functions(sources)
    yield from _tests([Source(path.relative_to(ROOT), path.stem, path.read_text()) for path in _test_files()])
    yield from _docstrings([*sources, *distribution_sources(), *script_sources()])


def _is_below(source: Source, folder: str) -> bool:
    return source.path.is_relative_to(folder)


def _lines(sources: Sequence[Source]) -> int:
    return sum(len(source.text.splitlines()) for source in sources)


def _code_lines(sources: Sequence[Source]) -> int:
    """Count the lines with code: without blank lines, comments and docstrings."""
    count = 0
    for source in sources:
        tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
        code = {
            line for token in tokens if token.type not in NO_CODE for line in range(token.start[0], token.end[0] + 1)
        }
        for node in ast.walk(source.tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        count += len(code)
    return count


def _sizes(sources: Sequence[Source]) -> Iterator[Row]:
    core = [source for source in sources if source.package == "core"]
    untested = [source for source in core if "testing" not in source.path.parts]
    yield "lines of core without testing", _lines(untested), ()
    yield "  of them code, not docstrings, comments or blank", _code_lines(untested), ()
    engine = [source for source in core if _is_below(source, ENGINE)]
    yield "lines of engine", _lines(engine), ()
    yield "  of them code, not docstrings, comments or blank", _code_lines(engine), ()
    generic = [source for source in engine if not PACKAGES & set(source.path.parts)]
    yield "lines of engine outside the feature packages", _lines(generic), ()
    yield "modules of engine", sum(not source.is_package for source in engine), ()
    counts = modules_per_folder(sources)
    largest = max(counts, key=counts.__getitem__)
    yield "most modules in one folder", f"{counts[largest]} ({largest})", ()
    crowded = [f"{folder}: {count}" for folder, count in sorted(counts.items()) if count > FOLDER_MODULES]
    yield f"folders with more than {FOLDER_MODULES} modules", len(crowded), crowded


def _request(trace: RequestTrace) -> Iterator[Row]:
    yield "files of which code runs for a text chat request", len(trace.files), ()
    yield "  in the engine's thread", len(trace.serving), sorted(trace.serving)
    yield "  in the API", len(trace.answering), sorted(trace.answering)
    classes = sorted(trace.constructed)
    yield "classes of the project that it makes objects of", len(classes), classes


def _representations(sources: Sequence[Source]) -> Iterator[Row]:
    classes = {node.name for source in sources for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)}
    known = [*(name for name in REPRESENTATIONS if name in classes), "chunk"]
    yield "representations of one request (a list kept by hand)", len(known), [" -> ".join(known)]
    for source in sources:
        if source.folder.startswith(ENGINE):
            for node in ast.walk(source.tree):
                if isinstance(node, ast.ClassDef) and node.name == "Sequence":
                    fields = [
                        ast.unparse(statement.target) for statement in node.body if isinstance(statement, ast.AnnAssign)
                    ]
                    yield "fields of Sequence", len(fields), [" ".join(fields)]


def feature_modules(feature: str, sources: Sequence[Source]) -> list[Path]:
    """Return the modules of the engine with identifiers that mention ``feature``."""
    modules = [source for source in sources if _is_below(source, ENGINE) and not source.is_package]
    return [source.path for source in modules if any(map(FEATURES[feature].search, _identifiers(source)))]


def _features(sources: Sequence[Source]) -> Iterator[Row]:
    for feature in FEATURES:
        all_of_them = feature_modules(feature, sources)
        generic = [path for path in all_of_them if not PACKAGES & set(path.parts)]
        listed = [str(path) for path in generic]
        yield (
            f"engine modules that mention {feature} (outside feature packages; all)",
            f"{len(generic)}; {len(all_of_them)}",
            listed,
        )


def _identifiers(source: Source) -> set[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def _objects(sources: Sequence[Source]) -> Iterator[Row]:
    late = [
        f"{source.path}:{target.lineno} {ast.unparse(target)}"
        for source in sources
        if source.package == "core" and "testing" not in source.path.parts
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign | ast.AugAssign)
        for target in _attributes(node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    yield "attributes of other objects that core sets after their construction", len(late), late
    asserted = [
        (f"{source.path}:{node.lineno} {ast.unparse(node.test)}", ast.unparse(node.test).endswith(", Sequence)"))
        for source in sources
        if _is_below(source, ENGINE)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assert) and "isinstance(" in ast.unparse(node.test)
    ]
    waiting = [text for text, is_sequence in asserted if is_sequence]
    yield "isinstance assertions about the protocol of waiting sequences", len(waiting), waiting
    yield "isinstance assertions in engine", len(asserted), [text for text, _ in asserted]


def _attributes(targets: Sequence[ast.expr]) -> Iterator[ast.Attribute]:
    for target in targets:
        if isinstance(target, ast.Tuple):
            yield from _attributes(target.elts)
        elif isinstance(target, ast.Attribute) and ast.unparse(target.value) != "self":
            yield target


def _imports(sources: Sequence[Source]) -> Iterator[Row]:
    cycles = [" <-> ".join(group) for group in import_cycles(import_graph(sources))]
    yield "import cycles at run time", len(cycles), cycles
    packages = [" <-> ".join(group) for group in package_cycles(sources)]
    yield "groups of packages that import each other", len(packages), packages
    forbidden = forbidden_imports(sources, ROOT)
    yield "forbidden imports", len(forbidden), forbidden


def _functions(sources: Sequence[Source]) -> Iterator[Row]:
    lengths = sorted(
        ((node.end_lineno or 0) - node.lineno + 1, f"{source.path}:{node.lineno} {node.name}")
        for source in sources
        if not any("kernel" in part for part in source.path.parts)
        for node in source.functions()
    )
    long = [f"{lines} {name}" for lines, name in lengths if lines > MAX_LINES]
    yield f"functions over {MAX_LINES} lines outside kernels", len(long), long
    yield "p95 of function lengths outside kernels", lengths[int(0.95 * len(lengths))][0], ()


def _test_files() -> Iterator[Path]:
    return (path for path in sorted((ROOT / "tests").rglob("*.py")))


def _tests(tests: Sequence[Source]) -> Iterator[Row]:
    private = [f"{test.path}:{node.lineno} {ast.unparse(node)}" for test in tests for node in _private(test.tree)]
    yield "private attributes used in tests", len(private), private
    patched = [f"{test.path}:{node.lineno}" for test in tests for node in _patches(test.tree)]
    yield "calls of monkeypatch in tests", len(patched), ()


def _private(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if ast.unparse(node.value) not in ("self", "cls"):
                yield node


def _patches(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PATCHES:
            if isinstance(node.func.value, ast.Name) and "patch" in node.func.value.id:
                yield node


def _docstrings(sources: Sequence[Source]) -> Iterator[Row]:
    faults = docstring_faults(sources)
    total = sum(1 for source in sources for _ in source.docstrings())
    yield "docstrings whose first line does not stand alone", f"{len(faults)} of {total}", faults


if __name__ == "__main__":
    main()
