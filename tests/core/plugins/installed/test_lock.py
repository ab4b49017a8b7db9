"""Lock files: an installation that differs from its lock file is refused before any of it is imported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_plug import PluginOptions, Plugins
from sglang_plug.config import ConfigError
from sglang_plug.plugins.installed.lock import freeze

ONE = "from pathlib import Path\nPath(__file__).with_name('imported').touch()\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a plugin file and a distribution."""
    (tmp_path / "one.py").write_text(ONE)
    package = tmp_path / "mine" / "mine_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("X = 1\n")
    entry = '[project]\nname = "mine"\nversion = "1.0"\n[project.entry-points.sglang_plug]\nmine = "mine_package"\n'
    (package.parent / "pyproject.toml").write_text(entry)
    return tmp_path


def options(folder: Path, lock: Path | None = None, **changes: tuple[str, ...]) -> PluginOptions:
    return PluginOptions(dirs=(str(folder),), locked="" if lock is None else str(lock), **changes)


@pytest.fixture
def lock(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("lock") / "plugins.json"
    file.write_text(freeze(Plugins.discover(options(folder)).imported))
    (folder / "imported").unlink()
    return file


def refusal(folder: Path, lock: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        Plugins.discover(options(folder, lock))
    assert not (folder / "imported").exists()
    return str(caught.value)


def test_the_same_plugins_start(folder: Path, lock: Path) -> None:
    plugins = Plugins.discover(options(folder, lock))
    assert {"one", "mine"} <= {plugin.name for plugin in plugins.loaded}


def test_compiled_files_do_not_count(folder: Path, lock: Path) -> None:
    cache = folder / "mine" / "mine_package" / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "other.pyc").write_bytes(b"anything")
    assert Plugins.discover(options(folder, lock)).loaded


def test_a_further_plugin_is_refused_unless_it_is_blocked(folder: Path, lock: Path) -> None:
    (folder / "further.py").write_text("")
    assert f"plugin 'further' of {folder / 'further.py'} is not in the lock file" in refusal(folder, lock)
    assert Plugins.discover(options(folder, lock, block=("further",))).loaded


def test_every_difference_is_named(folder: Path, lock: Path) -> None:
    project = folder / "mine" / "pyproject.toml"
    project.write_text(project.read_text().replace("1.0", "1.1"))
    (folder / "one.py").unlink()
    (folder / "two.py").write_text(ONE)
    message = refusal(folder, lock)
    assert "plugin 'mine' of mine has version 1.1, and 1.0 is locked" in message
    assert f"plugin 'one' of {folder / 'one.py'} is missing" in message
    assert f"plugin 'two' of {folder / 'two.py'} is not in the lock file" in message


def test_plugins_of_a_distribution_that_differ_in_the_same_way_are_one_line(folder: Path, lock: Path) -> None:
    content = json.loads(lock.read_text())
    mine = next(row for row in content["plugins"] if row["name"] == "mine")
    content["plugins"] += [{**mine, "name": f"part-{number}"} for number in range(5)]
    lock.write_text(json.dumps(content))
    message = refusal(folder, lock)
    assert message.count("\n") == 1
    assert "each of the plugins 'part-0', 'part-1', 'part-2' and 2 more of mine is missing" in message


@pytest.mark.parametrize("name", ["other.py", "__init__.py", "new.py", "data.json"])
def test_changed_and_added_files_are_noticed(name: str, folder: Path, lock: Path) -> None:
    (folder / "mine" / "mine_package" / name).write_text("X = 2\n")
    assert "plugin 'mine' of mine has other files, though its version is 1.0" in refusal(folder, lock)


def test_a_file_that_is_renamed_is_noticed(folder: Path, lock: Path) -> None:
    other = folder / "mine" / "mine_package" / "other.py"
    other.rename(other.with_name("another.py"))
    assert "has other files" in refusal(folder, lock)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"lock_version": 1, "api_version": 1}', "cannot be read: KeyError: 'plugins'"),
        ('{"lock_version": 1, "api_version": 1, "plugins": [{"name": "x"}]}', "cannot be read: TypeError"),
        ('{"lock_version": 2, "api_version": 1, "plugins": []}', "is of version 2 for plugin API 1"),
        (
            json.dumps(
                {
                    "lock_version": 1,
                    "api_version": 1,
                    "plugins": [{"name": "x", "distribution": "x", "version": 1, "sha256": ""}],
                }
            ),
            "not text",
        ),
    ],
)
def test_files_that_are_no_lock_files(content: str, message: str, folder: Path, lock: Path) -> None:
    lock.write_text(content)
    assert message in refusal(folder, lock)


def test_a_lock_file_that_is_missing(folder: Path, lock: Path) -> None:
    lock.unlink()
    assert "cannot be read: FileNotFoundError" in refusal(folder, lock)
