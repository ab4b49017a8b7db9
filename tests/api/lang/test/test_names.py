"""Names of SGLang's tests that its documents use."""

from __future__ import annotations

from sglang_plug_lang import utils
from sglang_plug_lang.test.doc_patch import launch_server_cmd
from sglang_plug_lang.test.test_utils import is_in_ci


def test_they_are_those_of_the_utilities() -> None:
    assert launch_server_cmd is utils.launch_server_cmd
    assert is_in_ci is utils.is_in_ci
