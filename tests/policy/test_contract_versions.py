"""The public contract does not break plugins without saying so; see docs/compatibility-policy.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    assert [one.contract for one in earlier if one.released is None] == [], "only the newest version may be unreleased"
    assert undeclared_breaks(earlier, present, changelog) == []


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
