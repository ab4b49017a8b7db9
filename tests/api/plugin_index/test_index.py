"""Index files are checked entry by entry, and the built-in index lists the plugins of this repository."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from sglang_plug import PluginError, PluginOptions, Plugins
from sglang_plug.plugins.hookspecs import CONTRACT_VERSION
from sglang_plug_api.plugin_index.contract_range import ContractRange
from sglang_plug_api.plugin_index.index import read_index

PLUGINS = Path(__file__).parents[3] / "plugins"
ENTRY = {
    "distribution": '"some-plugin"',
    "kinds": '["route"]',
    "summary": '"routes"',
    "homepage": '"https://example.org"',
    "licence": '"MIT"',
    "contract": '">=1.0,<2"',
}


def index(folder: Path, **fields: str | None) -> str:
    """Write an index with one entry, without the fields that are ``None``, and return its path."""
    lines = [f"{name} = {value}" for name, value in {**ENTRY, **fields}.items() if value is not None]
    file = folder / "index.toml"
    file.write_text("\n".join(["[[plugins]]", *lines]))
    return str(file)


def test_the_built_in_index_is_what_the_plugins_say() -> None:
    plugins = Plugins.discover(PluginOptions(dirs=(str(PLUGINS),)))
    entries = {entry.distribution: entry for entry in read_index(None)}
    for folder in sorted(PLUGINS.glob("*/")):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        entry = entries[project["name"]]
        kinds = {
            component.spec.kind for component in plugins.all() if component.plugin.distribution == entry.distribution
        }
        assert set(entry.kinds) == kinds
        assert (entry.licence, entry.homepage) == (project["license"], f"plugins/{folder.name}")
        assert ContractRange.parse(entry.contract).includes(CONTRACT_VERSION)


def test_the_built_in_index_names_known_kinds() -> None:
    kinds = set(Plugins.discover().kinds())
    assert {kind for entry in read_index(None) for kind in entry.kinds} <= kinds


def test_a_correct_entry(tmp_path: Path) -> None:
    (entry,) = read_index(index(tmp_path))
    assert entry.matches(["ROUTE"]) and entry.matches(["some", "routes"]) and not entry.matches(["some", "model"])


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"licence": None}, "'some-plugin'.licence: Field required"),
        ({"distribution": None}, "'entry 1'.distribution: Field required"),
        ({"distribution": '"Some_Plugin"'}, "canonical spelling, 'some-plugin'"),
        ({"kinds": "[]"}, "kinds"),
        ({"kinds": '["Route!"]'}, "kinds"),
        ({"summary": '"a\\u001b[2Jb"'}, "one line of printable characters"),
        ({"summary": '"a\\nb"'}, "one line of printable characters"),
        ({"summary": f'"{"a" * 201}"'}, "summary"),
        ({"homepage": '"javascript:alert(1)"'}, "homepage"),
        ({"contract": '"1.0"'}, "is not a range of versions"),
        ({"more": "1"}, "'some-plugin'.more: Extra inputs"),
        ({"summary": "5"}, "'some-plugin'.summary: Input should be a valid string"),
    ],
)
def test_a_faulty_entry_is_named(fields: dict[str, str | None], problem: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError) as caught:
        read_index(index(tmp_path, **fields))
    assert "index.toml is wrong: " in str(caught.value) and problem in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"plugins = 3", "is wrong: plugins"),
        (b"plugins = [3]", "is wrong: plugins.0"),
        (b"other = 3", "is wrong: other"),
        (b"[[plugins", "is not TOML"),
        (b"\xff", "is not TOML"),
    ],
)
def test_a_faulty_file_is_named(content: bytes, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "index.toml"
    file.write_bytes(content)
    with pytest.raises(PluginError, match=problem):
        read_index(str(file))


def test_an_entry_may_not_be_listed_twice(tmp_path: Path) -> None:
    file = Path(index(tmp_path))
    file.write_text(f"{file.read_text()}\n{file.read_text()}")
    with pytest.raises(PluginError, match="lists some-plugin more than once"):
        read_index(str(file))
