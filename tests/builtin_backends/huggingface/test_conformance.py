from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sglang_plug.testing import check_tokenizer


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback", "metaspace", "wordpiece"])
def test_tokenizers_keep_the_contract(folders: dict[str, Path], kind: str) -> None:
    check_tokenizer("huggingface", folders[kind], lossless=kind.startswith("byte"))


def test_a_tokenizer_with_a_chat_template_keeps_the_contract(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "chats"
    shutil.copytree(folders["byte-level"], folder)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}[{{ m.role }}] {{ m['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    check_tokenizer("huggingface", folder)
