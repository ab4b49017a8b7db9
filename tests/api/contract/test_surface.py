from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug import PluginError
from sglang_plug_api.contract.surface import read_surface, surface_text, version_key, version_numbers
from tests.api.contract.contracts import OLD


def test_a_description_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "contract.json"
    file.write_text(surface_text(OLD))
    assert read_surface(str(file)) == OLD


def test_every_version_in_the_package_can_be_read() -> None:
    assert [read_surface(number).contract for number in version_numbers()] == version_numbers()
    assert "sglang_plug.Model" in read_surface(version_numbers()[-1]).items


def test_versions_are_ordered_by_number() -> None:
    assert version_key("1.10") > version_key("1.9")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"contract": "1.0", "routes": 1, "items": {"x": {"kind": "y"}}}'])
def test_a_damaged_file_is_named(content: str, tmp_path: Path) -> None:
    file = tmp_path / "contract.json"
    file.write_text(content)
    with pytest.raises(PluginError, match="contract.json' does not describe a version of the contract"):
        read_surface(str(file))


def test_an_unknown_version_lists_the_known_ones() -> None:
    with pytest.raises(PluginError, match=r"no version of the contract '99.0'; known versions: .*1\.0"):
        read_surface("99.0")


def test_optional_and_provided_classes_are_told_apart() -> None:
    assert OLD.is_implementable("sglang_plug.Policy") and OLD.is_implementable("sglang_plug.Special")
    assert not OLD.is_implementable("sglang_plug.Node") and not OLD.is_implementable("sglang_plug.Batch")
