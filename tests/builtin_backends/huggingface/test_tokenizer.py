from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sglang_plug import ConfigError, TemplateError, TokenizerSource
from sglang_plug_backends.huggingface.tokenizer import load_tokenizer

Save = Callable[..., Path]
TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
HELLO = [{"role": "user", "content": "the dog"}]


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback", "metaspace", "wordpiece"])
@pytest.mark.parametrize("text", ["the dog, the fox", "  two  spaces ", "Grüße 你好 🦊", "<|user|>the dog</s>", ""])
def test_tokens_are_those_of_transformers(folders: dict[str, Path], kind: str, text: str) -> None:
    tokenizer = load_tokenizer(TokenizerSource(path=folders[kind]))
    reference = PreTrainedTokenizerFast.from_pretrained(folders[kind])
    for special in (True, False):
        tokens = tokenizer.encode(text, special=special)
        assert tokens == reference.encode(text, add_special_tokens=special)
        for skip in (True, False):
            assert tokenizer.decode(tokens, skip_special=skip) == reference.decode(
                tokens, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )


def test_start_token_is_added_only_on_request(folders: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(TokenizerSource(path=folders["byte-level"]))
    plain = tokenizer.encode("the dog", special=False)
    assert tokenizer.encode("the dog") == [0, *plain]


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", "\ud83d\ude00"])
def test_surrogates_become_text(folders: dict[str, Path], text: str) -> None:
    tokenizer = load_tokenizer(TokenizerSource(path=folders["byte-level"]))
    expected = {"a\ud800b": "a\ufffdb", "\udfff": "\ufffd", "\ud83d\ude00": "😀"}[text]
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == expected


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback"])
def test_pieces_are_exact_bytes(folders: dict[str, Path], kind: str) -> None:
    tokenizer = load_tokenizer(TokenizerSource(path=folders[kind]))
    fox = tokenizer.encode("🦊", special=False)[-4:]
    assert b"".join(map(tokenizer.piece_bytes, fox)) == "🦊".encode()
    assert tokenizer.piece(fox[0]) == "\ufffd"
    dog = tokenizer.encode("the dog", special=False)
    assert b"".join(map(tokenizer.piece_bytes, dog)).lstrip() == b"the dog"
    assert "".join(map(tokenizer.piece, dog)).lstrip() == "the dog"


def test_pieces_of_added_tokens_and_of_other_vocabularies(folders: dict[str, Path]) -> None:
    byte_level = load_tokenizer(TokenizerSource(path=folders["byte-level"]))
    added = byte_level.encode("é!", special=False)
    assert len(added) == 1
    assert byte_level.piece_bytes(added[0]) == "é!".encode()
    wordpiece = load_tokenizer(TokenizerSource(path=folders["wordpiece"]))
    assert [wordpiece.piece(token) for token in wordpiece.encode("running", special=False)] == [" run", "ning"]
    assert [wordpiece.piece_bytes(token) for token in wordpiece.encode("runs", special=False)] == [b" run", b"s"]


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback"])
def test_ids_without_a_token_have_no_text(folders: dict[str, Path], kind: str) -> None:
    tokenizer = load_tokenizer(TokenizerSource(path=folders[kind]))
    outside = tokenizer.vocab_size + 5
    assert tokenizer.piece_bytes(outside) == b""
    assert tokenizer.decode([outside, -1]) == ""


def test_vocabulary_counts_added_tokens(folders: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(TokenizerSource(path=folders["byte-level"]))
    assert tokenizer.vocab_size == len(PreTrainedTokenizerFast.from_pretrained(folders["byte-level"]))


def test_special_tokens_are_skipped_but_markers_are_kept(folders: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(TokenizerSource(path=folders["byte-level"]))
    tokens = tokenizer.encode("<|user|>the dog<tool_call></s>", special=False)
    assert tokenizer.decode(tokens) == "the dog<tool_call>"
    assert tokenizer.decode(tokens, skip_special=False) == "<|user|>the dog<tool_call></s>"


def test_end_tokens_come_from_tokenizer_and_configurations(save_tokenizer: Save) -> None:
    folder = save_tokenizer()
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 1]}', encoding="utf-8")
    (folder / "config.json").write_text('{"eos_token_id": 2}', encoding="utf-8")
    assert load_tokenizer(TokenizerSource(path=folder)).eos_token_ids == (1, 3, 2)


def test_end_tokens_without_configurations(save_tokenizer: Save) -> None:
    folder = save_tokenizer()
    (folder / "config.json").write_text("[", encoding="utf-8")
    assert load_tokenizer(TokenizerSource(path=folder)).eos_token_ids == (1,)


def test_tokenizer_is_safe_in_threads(folders: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(TokenizerSource(path=folders["byte-level"], chat_template=TEMPLATE))
    text = "the quick brown fox 你好 " * 50
    expected = tokenizer.encode(text)
    wrong: list[object] = []

    def work() -> None:
        try:
            for _ in range(20):
                if tokenizer.encode(text) != expected or tokenizer.decode(expected) != text:
                    wrong.append("other tokens")
                tokenizer.chat(HELLO)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_template_of_the_folder(save_tokenizer: Save) -> None:
    tokenizer = load_tokenizer(TokenizerSource(path=save_tokenizer(chat_template=TEMPLATE)))
    assert tokenizer.chat(HELLO) == "<s>[user] the dog</s>"


def test_template_file_of_the_folder(save_tokenizer: Save) -> None:
    folder = save_tokenizer()
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    assert load_tokenizer(TokenizerSource(path=folder)).chat(HELLO) == "<s>[user] the dog</s>"


def test_named_templates(save_tokenizer: Save) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools[0].name }}"}]
    tokenizer = load_tokenizer(TokenizerSource(path=save_tokenizer(chat_template=named)))
    assert tokenizer.chat(HELLO) == "plain"
    assert tokenizer.chat(HELLO, tools=[{"name": "weather"}]) == "weather"


def test_given_template_as_text_or_file_wins(save_tokenizer: Save, tmp_path: Path) -> None:
    folder = save_tokenizer(chat_template="the folder's own")
    file = tmp_path / "mine.jinja"
    file.write_text("from a file: {{ messages[0].content }}", encoding="utf-8")
    from_file = load_tokenizer(TokenizerSource(path=folder, chat_template=str(file)))
    assert from_file.chat(HELLO) == "from a file: the dog"
    from_text = load_tokenizer(TokenizerSource(path=folder, chat_template="text: {{ messages[0].content }}"))
    assert from_text.chat(HELLO) == "text: the dog"


@pytest.mark.parametrize(
    ("template", "message"),
    [("missing.jinja", "neither a Jinja template nor a readable file"), ("{% for %}", "cannot be compiled")],
)
def test_given_template_must_be_usable(folders: dict[str, Path], template: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"--chat-template: .*{message}"):
        load_tokenizer(TokenizerSource(path=folders["byte-level"], chat_template=template))


def test_missing_template_is_an_error_of_the_request(folders: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(TokenizerSource(path=folders["byte-level"]))
    with pytest.raises(TemplateError, match="no chat template; give one with --chat-template"):
        tokenizer.chat(HELLO)


def test_broken_template_of_the_folder_does_not_stop_loading(
    save_tokenizer: Save, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = load_tokenizer(TokenizerSource(path=save_tokenizer(chat_template="{% for %}")))
    assert "Chats will be refused" in caplog.text and "--chat-template" in caplog.text
    with pytest.raises(TemplateError, match="cannot be compiled"):
        tokenizer.chat(HELLO)


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no tokenizer.*--tokenizer-path.*--skip-tokenizer-init"):
        load_tokenizer(TokenizerSource(path=tmp_path))
    with pytest.raises(ConfigError, match="there is no such folder"):
        load_tokenizer(TokenizerSource(path=tmp_path / "nowhere"))


def test_broken_tokenizer_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": ', encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_tokenizer(TokenizerSource(path=tmp_path))


@pytest.mark.parametrize("adds", [True, False])
def test_class_named_by_the_folder_makes_no_difference(save_tokenizer: Save, adds: bool) -> None:
    folder = save_tokenizer("byte-fallback", tokenizer_class="LlamaTokenizerFast", add_bos_token=adds)
    tokenizer, reference = load_tokenizer(TokenizerSource(path=folder)), AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("the dog") == reference.encode("the dog")
    assert tokenizer.decode(tokenizer.encode("the dog")) == "the dog"


def test_older_files_are_converted(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
    tokenizer = load_tokenizer(TokenizerSource(path=tmp_path))
    assert tokenizer.decode(tokenizer.encode("The dogs")) == "the dogs"


def test_others_run_while_a_long_text_is_tokenised(folders: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(TokenizerSource(path=folders["byte-level"]))
    for words in (50_000, 200_000, 800_000):  # long enough, also where the machine gives this thread few turns
        turns = 0
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(tokenizer.encode, "the dog " * words, special=False)
            while not work.done():
                time.sleep(0.001)
                turns += 1
        assert len(work.result()) >= words
        if turns > 5:
            break
    assert turns > 5  # a thread that holds the interpreter gives others no turn, however long it works
