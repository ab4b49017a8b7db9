"""Several grammar backends combined into one."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, Constraint, ConstraintError, GrammarBackend, PluginOptions, Plugins, Vocabulary
from sglang_plug_backends.structured_outputs.grammar_backends import GrammarBackends, forms, installed

PLUGIN = """
from sglang_plug import ConfigError, ConstraintError, GrammarBackend, GrammarSpec, hookimpl

@hookimpl
def register_grammar_backends():
    kinds = {"first": {"regex", "ebnf"}, "second": {"regex", "choice"}, "words": {"choice"}, "broken": {"regex"}}
    for name, only in kinds.items():
        yield GrammarSpec(name=name, target=f"{__name__}:{name.title()}", forms=frozenset(only))
    yield GrammarSpec(name="absent", target=f"{__name__}:First", needs=("no_such_library_at_all",))

class Fake(GrammarBackend):
    built, constraints = [], []

    def __init__(self, vocabulary, settings):
        super().__init__(vocabulary, settings)
        self.built.append(type(self).__name__)

    def refuses(self, constraint):
        return f"{type(self).__name__} refuses" if self.limit < len(constraint.source) else None

    def compile(self, constraint):
        self.constraints.append(constraint)
        if constraint.source == "bad":
            raise ConstraintError(f"{type(self).__name__} fails")
        return type(self).__name__.encode() + bytes([0, 1])

    def load(self, constraint, compiled):
        self.constraints.append(constraint)
        return lambda: (type(self).__name__, compiled)

class First(Fake):
    limit = 3

class Second(Fake):
    limit = 6

class Words(Fake):
    limit = 100

    def refuses(self, constraint):
        assert constraint.kind == "choice", "asked for a kind that it does not declare"
        return super().refuses(constraint)

class Broken(Fake):
    def __init__(self, vocabulary, settings):
        raise ConfigError("Broken cannot be built")
"""

Make = Callable[..., GrammarBackends]


@pytest.fixture
def plugins(tmp_path: Path) -> Plugins:
    file = tmp_path / "several_backends.py"
    file.write_text(textwrap.dedent(PLUGIN))
    return Plugins.discover(PluginOptions(files=(str(file),)))


@pytest.fixture
def fakes(plugins: Plugins) -> Any:
    """Return the base class of the plugin's backends, which records those that were built and their constraints."""
    return plugins.get("grammar", "first").load(GrammarBackend).__base__


@pytest.fixture
def make(plugins: Plugins) -> Make:
    """Return ``make(*order)``, which combines the backends in this order."""
    components = installed(plugins, plugins.get("grammar", "first"))
    return lambda *order: GrammarBackends(components, order, Vocabulary([b"a"]))


def enforced_by(backends: GrammarBackends, kind: str, source: str, backend: str = "") -> str:
    """Return the name of the backend that compiled and loaded a constraint."""
    constraint = Constraint(kind, source, backend)  # type: ignore[arg-type]
    assert backends.refuses(constraint) is None
    name, compiled = backends.load(constraint, backends.compile(constraint))()  # type: ignore[misc]
    assert compiled == name.encode() + b"\0\1"
    return str(name)


def test_the_first_that_fully_enforces_a_constraint_takes_it(make: Make) -> None:
    backends = make("first", "second")
    assert enforced_by(backends, "regex", "abc") == "First"
    assert enforced_by(backends, "regex", "abcd") == "Second"
    assert enforced_by(backends, "choice", '["a"]') == "First"
    assert enforced_by(backends, "choice", '[".."]') == "Second"
    assert enforced_by(backends, "regex", "abcd", "auto") == "Second"
    for kind, source, words in (
        ("regex", "abcdefg", "First refuses"),
        ("regex", "bad", "First fails"),
        ("json_schema", "{}", "first cannot enforce this kind"),
    ):
        with pytest.raises(ConstraintError, match=words) as caught:
            backends.compile(Constraint(kind, source))  # type: ignore[arg-type]
        assert caught.value.lasting


def test_a_constraint_may_name_a_backend(make: Make) -> None:
    backends = make("first")
    assert enforced_by(backends, "regex", "a", "second") == "Second"
    for name, words in (
        ("scond", "no grammar backend 'scond' is installed; did you mean 'second'"),
        ("zzz", "installed: .*first, .*second"),
        ("absent", "no grammar backend 'absent' is installed"),
        ("broken", "Broken cannot be built"),
    ):
        assert backends.refuses(Constraint("regex", "a", name)) is not None
        with pytest.raises(ConstraintError, match=words):
            backends.compile(Constraint("regex", "a", name))
    with pytest.raises(ConstraintError, match="First refuses"):
        backends.compile(Constraint("regex", "abcd"))
    words = "the grammar backend words cannot enforce this kind; installed that can: .*second"
    with pytest.raises(ConstraintError, match=words):
        backends.compile(Constraint("regex", "a", "words"))


@pytest.mark.parametrize(
    ("backend", "source", "enforced"),
    [
        ("words", r'["a.b", "\\", "a.b"]', Constraint("choice", r'["a.b", "\\", "a.b"]', "words")),
        ("second", '["."]', Constraint("choice", '["."]', "second")),
        ("first", '[".", "."]', Constraint("regex", r"\.", "first")),
        ("first", '["a", "b", "a"]', Constraint("regex", "a|b", "first")),
    ],
)
def test_a_choice_is_a_regular_expression_for_backends_without_choices(
    make: Make, fakes: Any, backend: str, source: str, enforced: Constraint
) -> None:
    backends = make("first", "second", "words")
    assert enforced_by(backends, "choice", source, backend) == backend.title()
    assert fakes.constraints == [enforced] * 2


@pytest.mark.parametrize("source", ["[]", "{", '["a", 1]', '["\\ud800"]'])
def test_a_choice_that_is_no_list_of_texts_is_refused(make: Make, source: str) -> None:
    with pytest.raises(ConstraintError, match="choice"):
        make("first").compile(Constraint("choice", source))


def test_each_is_built_once_and_when_needed(make: Make, fakes: Any) -> None:
    backends = make("first", "second")
    assert fakes.built == ["First"]
    for _ in range(2):
        enforced_by(backends, "regex", "abcd")
    assert fakes.built == ["First", "Second"]
    with pytest.raises(ConfigError, match="Broken cannot be built"):
        make("broken")


def test_forms_and_installed(plugins: Plugins) -> None:
    first = plugins.get("grammar", "first")
    components = installed(plugins, first)
    assert components[0] is first and "absent" not in {component.spec.name for component in components}
    assert forms([first]) == {"regex", "ebnf", "choice"}
    assert forms([plugins.get("grammar", "words")]) == {"choice"}
