"""Tests of the state of a chat in the terminal: sending, undoing and writing messages."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from sglang_plug_api.terminal.conversation import Conversation, image_address, parameter


def test_the_system_prompt_comes_first_and_survives_clearing() -> None:
    conversation = Conversation(system="Be brief.")
    assert [message["role"] for message in conversation.ask("Hello")] == ["system", "user"]
    conversation.answer("Hi")
    conversation.clear()
    assert conversation.to_send() == [{"role": "system", "content": "Be brief."}]


def test_images_belong_to_the_next_message_only() -> None:
    conversation = Conversation(images=["data:image/png;base64,AA"])
    (first,) = conversation.ask("What is this?")
    assert [part["type"] for part in first["content"]] == ["image_url", "text"]
    conversation.answer("A cat")
    assert conversation.ask("Sure?")[-1] == {"role": "user", "content": "Sure?"}


def test_the_last_exchange_is_taken_back_and_restored() -> None:
    conversation = Conversation()
    assert conversation.withdraw() is None
    for text in ("one", "two"):
        conversation.ask(text)
        conversation.answer(text.upper())
    message = conversation.withdraw()
    assert message == {"role": "user", "content": "two"}
    assert [message["content"] for message in conversation.messages] == ["one", "ONE"]
    assert [entry["content"] for entry in conversation.restore(message)] == ["one", "ONE", "two"]


def test_a_saved_conversation_is_a_request(tmp_path: Path) -> None:
    conversation = Conversation(system="Be brief.", parameters={"temperature": 0})
    conversation.ask("Grüße")
    conversation.save(tmp_path / "chat.json", "demo")
    saved = json.loads((tmp_path / "chat.json").read_text(encoding="utf-8"))
    assert saved == {"model": "demo", "messages": conversation.to_send(), "temperature": 0}


def test_files_become_data_addresses(tmp_path: Path) -> None:
    (tmp_path / "dot.png").write_bytes(b"\x89PNG")
    assert image_address(str(tmp_path / "dot.png")) == "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
    assert image_address("https://example.com/dot") == "https://example.com/dot"
    with pytest.raises(FileNotFoundError):
        image_address(str(tmp_path / "none.png"))
    with pytest.raises(ValueError, match=r"notes\.txt is not an image"):
        image_address("notes.txt")


@pytest.mark.parametrize(("text", "value"), [("0.5", 0.5), ('["a"]', ["a"]), ("plain", "plain"), ("true", True)])
def test_values_are_json_where_they_can_be(text: str, value: object) -> None:
    assert parameter(text) == value
