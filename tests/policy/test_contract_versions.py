"""The public contract does not break plugins without saying so; see docs/compatibility-policy.md."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from sglang_plug.plugins.hookspecs import API_MINOR_VERSION
from sglang_plug_api.contract.surface import Item, Surface, read_surface, version_numbers
from tests.policy.contract_versions import undeclared_breaks

OLD = Item("value", "1")
WARNED = Item("renamed", "sglang_plug.b")


def contract(number: str, *, routes: int = 1, **items: Item) -> Surface:
    names = {name.replace("__", "."): item for name, item in items.items()}
    return Surface(contract=number, routes=routes, released="0.1", items=names)


def test_the_description_of_the_present_contract_is_up_to_date(root: Path) -> None:
    command = [sys.executable, str(root / "docs" / "generate_contract_version.py"), "--check"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_breaks_since_the_last_release_are_declared(root: Path) -> None:
    *earlier, present = map(read_surface, version_numbers())
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert [version.contract for version in earlier if version.released is None] == [], (
        "only the newest version may be unreleased"
    )
    assert undeclared_breaks(earlier, present, changelog) == []


def generated(root: Path, *arguments: str | Path) -> tuple[int, str]:
    """Run the program that describes the contract; return its exit status and its errors."""
    command = [sys.executable, root / "docs" / "generate_contract_version.py", *arguments]
    done = subprocess.run(list(map(str, command)), stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


def changed_tree(root: Path, folder: Path) -> Path:
    """Copy the sources of the contract, without ``sglang_plug.testing.check_kv_store``."""
    for package in ("core/sglang_plug", "api/sglang_plug_api"):
        shutil.copytree(root / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.tmpl"))
    exports = folder / "core" / "sglang_plug" / "testing" / "__init__.py"
    lines = exports.read_text(encoding="utf-8").splitlines(keepends=True)
    exports.write_text("".join(line for line in lines if "check_kv_store" not in line), encoding="utf-8")
    return folder


def test_what_one_command_releases_cannot_be_broken_afterwards(root: Path, tmp_path: Path) -> None:
    released, following = tmp_path / "released.json", tmp_path / "following.json"
    assert generated(root, "--out", released, "--release", "0.1.0") == (0, "")
    assert generated(root, "--out", released) == generated(root, "--out", released, "--check") == (0, "")
    tree = changed_tree(root, tmp_path / "tree")
    status, errors = generated(root, "--out", released, "--tree", tree)
    assert status == 1 and "was released with sglang-plug 0.1.0 and must not change: raise API_MINOR_VERSION" in errors
    hookspecs = tree / "core" / "sglang_plug" / "plugins" / "hookspecs.py"
    minor = f"API_MINOR_VERSION = {API_MINOR_VERSION}"
    text = hookspecs.read_text(encoding="utf-8")
    assert minor in text
    hookspecs.write_text(text.replace(minor, f"API_MINOR_VERSION = {API_MINOR_VERSION + 1}"), encoding="utf-8")
    assert generated(root, "--out", following, "--tree", tree) == (0, "")
    before, after = read_surface(str(released)), read_surface(str(following))
    assert undeclared_breaks([before], after, "")[0] == (
        "sglang_plug.testing.check_kv_store was removed: this breaks plugins; undo it or raise API_VERSION"
    )


def test_an_undeclared_removal_is_found() -> None:
    before, after = contract("1.0", sglang_plug__a=OLD), contract("1.1")
    (first, second) = undeclared_breaks([before], after, "")
    assert first == "sglang_plug.a was removed: this breaks plugins; undo it or raise API_VERSION"
    assert "deprecated in 0 of the last 2 versions" in second


def test_a_declared_removal_must_be_in_the_changelog() -> None:
    releases = [contract(number, sglang_plug__a=WARNED) for number in ("1.0", "1.1")]
    assert undeclared_breaks(releases, contract("2.0"), "`sglang_plug.a` is gone") == []
    assert "CHANGELOG.md does not mention" in undeclared_breaks(releases, contract("2.0"), "")[0]


def test_one_version_with_a_warning_is_too_few() -> None:
    releases = [contract("1.0", sglang_plug__a=OLD), contract("1.1", sglang_plug__a=WARNED)]
    (problem,) = undeclared_breaks(releases, contract("2.0"), "`sglang_plug.a` is gone")
    assert "deprecated in 1 of the last 2 versions" in problem


def test_routes_have_a_version_of_their_own() -> None:
    releases = [contract(number, sglang_plug_api__plugin__Job=WARNED) for number in ("1.0", "1.1")]
    text = "`sglang_plug_api.plugin.Job` is gone"
    assert undeclared_breaks(releases, contract("1.2", routes=2), text) == []
    assert "raise ROUTE_API_VERSION" in undeclared_breaks(releases, contract("1.2"), text)[0]


def test_additions_and_unreleased_versions_are_free() -> None:
    assert undeclared_breaks([contract("1.0")], contract("1.1", sglang_plug__a=OLD), "") == []
    assert undeclared_breaks([contract("1.1", sglang_plug__a=OLD)], contract("1.1"), "") == []
