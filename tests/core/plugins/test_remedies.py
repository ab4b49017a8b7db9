"""The error for a component that lacks a library names the extra that installs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug.plugins.requirements import remedy

METADATA = """Metadata-Version: 2.1
Name: with-extras
Version: 1.0
Requires-Dist: plain-missing
Requires-Dist: missing-one>=2 ; extra == 'all'
Requires-Dist: Missing_Two ; extra == "all"
Requires-Dist: kernels-python>=2 ; extra == 'all'
Requires-Dist: python-forms ; extra == 'forms'
Requires-Dist: missing-one<3,>=2 ; python_version > "3" and extra == "one"
"""


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "with_extras-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(tmp_path)
    return "with-extras"


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        (("missing_one>=2",), "pip install 'with-extras[one]'"),
        (("missing_one", "missing_two"), "pip install 'with-extras[all]'"),
        (("json", "missing_two"), "pip install 'with-extras[all]'"),
        (("kernels",), "pip install 'with-extras[all]'"),
        (("forms.fields",), "pip install 'with-extras[forms]'"),
        (("plain_missing",), ""),
        (("missing_one", "nobody_has_it"), ""),
        (("json",), ""),
        ((), ""),
    ],
)
def test_the_smallest_extra_is_named(needs: tuple[str, ...], expected: str, distribution: str) -> None:
    assert remedy(needs, distribution) == expected


def test_a_file_has_no_extras() -> None:
    assert remedy(("nobody_has_it",), "/folder/plugin.py") == ""
