"""Tests of states: text, messages, variables, scopes, errors."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_plug_lang import (
    BackendError,
    Completion,
    LanguageError,
    Prompt,
    assistant,
    assistant_begin,
    assistant_end,
    function,
    gen,
    gen_int,
    gen_string,
    greedy_token_selection,
    image,
    select,
    separate_reasoning,
    system,
    user,
    user_begin,
    user_end,
)
from sglang_plug_lang.ir import GenerationOptions
from tests.api.lang.conftest import FakeBackend


def run(program: Any, **options: Any) -> Any:
    return function(program).run(**options)


def test_text_is_what_the_template_says(backend: Any) -> None:
    def program(s: Any) -> None:
        s += system("Be brief.")
        s += user("Hello")
        s += assistant("I say " + gen("word") + ".")

    state = run(program)
    assert state["word"] == "<1>"
    assert state.text() == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nI say <1>.<|im_end|>\n"
    )
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "I say <1>."},
    ]
    (prompt,) = backend.prompts
    assert prompt.text.endswith("<|im_start|>assistant\nI say ")
    assert (prompt.role, prompt.begun, len(prompt.messages)) == ("assistant", "I say ", 2)
    assert state.get_meta_info("word") == {"length": 3}
    assert state.error() is None


@pytest.mark.parametrize("style", ["blocks", "methods", "contexts", "begin and end"])
def test_four_ways_to_write_a_message(backend: Any, style: str) -> None:
    def program(s: Any) -> None:
        match style:
            case "blocks":
                s += user("Hi") + assistant(gen("x"))
            case "methods":
                s += s.user("Hi")
                s += s.assistant(gen("x"))
            case "contexts":
                with s.user():
                    s += "Hi"
                with s.assistant():
                    s += gen("x")
            case _:
                s += user_begin() + "Hi"
                s += user_end()
                s += assistant_begin()
                s += gen("x")
                s += assistant_end()

    expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<1><|im_end|>\n"
    assert run(program).text() == expected


@pytest.mark.parametrize(("opening", "inserted"), [(user, True), (assistant, True), (system, False)])
def test_the_default_system_prompt_comes_first(backend: Any, opening: Any, inserted: bool) -> None:
    from sglang_plug_lang.templates import template_named

    backend.chat_template = template_named("qwen")

    def program(s: Any) -> None:
        s += opening("a")
        s += user("b")

    state = run(program)
    prompt = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    assert state.text().startswith(prompt) == inserted
    assert state.text().count("helpful") == int(inserted)
    assert len(state.messages()) == (3 if inserted else 2)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.text(max_size=8), st.just(None)), max_size=12), st.booleans())
def test_text_is_the_sum_of_its_parts(backend: Any, pieces: list[str | None], stream: bool) -> None:
    backend.prompts.clear()
    texts = []

    def program(s: Any) -> None:
        for index, piece in enumerate(pieces):
            s += gen(f"v{index}") if piece is None else piece

    state = run(program, stream=stream)
    expected = ""
    count = 0
    for index, piece in enumerate(pieces):
        if piece is None:
            count += 1
            texts.append(expected)
            assert state[f"v{index}"] == f"<{count}>"
        expected += f"<{count}>" if piece is None else piece
    assert state.text() == expected
    assert "".join(state.text_iter()) == expected
    assert [prompt.text for prompt in backend.prompts] == texts


def test_appending_does_not_wait(backend: Any) -> None:
    gate = threading.Event()
    backend.reply = lambda prompt: "done" if gate.wait(240) else "never"

    def program(s: Any) -> None:
        s += gen("x")
        s += "tail"

    state = run(program)
    gate.set()
    assert state.text() == "donetail"


def test_a_variable_that_is_generated_again_is_read_anew(backend: Any) -> None:
    steps = []

    def program(s: Any) -> None:
        for _ in range(3):
            s += gen("step")
            steps.append(s["step"])

    run(program)
    assert steps == ["<1>", "<2>", "<3>"]


def test_choices_go_on_in_the_text(backend: Any) -> None:
    def program(s: Any) -> None:
        s += "I take " + gen("tool", choices=["a", "c", "b"]) + "."
        if s["tool"] == "c":
            s += select("second", ["1", "2"], choices_method=greedy_token_selection)

    state = run(program)
    assert state.text() == "I take c.2"
    assert state.get_meta_info("second")["method"] == "greedy_token_selection"


def test_samples_and_types(backend: Any) -> None:
    backend.reply = lambda prompt: {"": "one", "one": " 42 ", "one 42 ": '"a b"'}.get(prompt.text, "1.5")

    def program(s: Any) -> None:
        s += gen("n", n=3)
        s += gen_int("int")
        s += gen_string("str")
        s += gen("float", dtype=float)

    state = run(program)
    assert state.variables() == {"n": ["one", "other", "other"], "int": 42, "str": "a b", "float": 1.5}
    assert state.text() == 'one 42 "a b"1.5'


def test_not_a_number(backend: Any) -> None:
    state = run(lambda s: s.__iadd__(gen_int("x")))
    with pytest.raises(LanguageError, match="asked for int and said '<1>'"):
        state["x"]


def test_options_of_the_run_hold_for_every_gen(backend: Any) -> None:
    def program(s: Any) -> None:
        s += gen("a") + gen("b", temperature=0.7, stop="x")

    run(program, temperature=0, max_new_tokens=9).sync()
    first, second = backend.options
    assert (first.temperature, first.max_tokens, first.stop) == (0, 9, None)
    assert (second.temperature, second.max_tokens, second.stop) == (0.7, 9, "x")


def test_scopes_keep_all_text_inside(backend: Any) -> None:
    def program(s: Any) -> None:
        s += "before "
        with s.var_scope("outer"):
            s += "a"
            with s.var_scope("inner"):
                s += gen("x")
            s += "b"
        s += " after"

    state = run(program)
    assert (state["inner"], state["outer"]) == ("<1>", "a<1>b")
    assert list(state.text_iter("outer")) == ["a", "<1>", "b"]


def test_thoughts_are_separated(backend: Any) -> None:
    backend.reply = lambda prompt: "<think>\nhm\n</think>\n\nYes."

    def program(s: Any) -> None:
        s += assistant(separate_reasoning("So: " + gen("x") + "!", "qwen3"))

    for stream in (False, True):
        state = run(program, stream=stream)
        assert (state["x"], state["x_reasoning_content"]) == ("Yes.", "hm")
        assert state.messages()[-1]["content"] == "So: Yes.!"


def test_images(backend: Any) -> None:
    def program(s: Any) -> None:
        s += user(image(b"abc") + "what?")
        s += assistant(gen("x"))

    state = run(program)
    assert state["x"] == "<1>"
    assert backend.prompts[0].images == ("YWJj",)
    assert "user\n<image>what?<|im_end|>" in backend.prompts[0].text
    assert state.messages()[0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,YWJj"}},
        {"type": "text", "text": "what?"},
    ]


def test_an_error_stops_and_is_raised_on_reading(backend: Any) -> None:
    def reply(prompt: Any) -> str:
        if prompt.text == "ab":
            raise BackendError("refused", 400)
        return "b"

    backend.reply = reply

    def program(s: Any) -> None:
        s += "a" + gen("good")
        s += gen("bad")
        s += gen("later")

    state = run(program)
    error = state.error()
    assert isinstance(error, BackendError) and error.status == 400
    assert state["good"] == "b"
    for read in (lambda: state["bad"], lambda: state["later"], state.text, state.messages, lambda: state["none"]):
        with pytest.raises(BackendError, match="refused"):
            read()
    with pytest.raises(BackendError, match="refused"):
        list(state.text_iter())
    with pytest.raises(BackendError, match="refused"):
        list(state.text_iter("bad"))
    assert len(backend.prompts) == 2
    copy = state.copy()
    assert copy.error() is error


def test_an_error_that_the_program_meets_is_kept(backend: Any) -> None:
    def reply(prompt: Any) -> str:
        raise BackendError("refused", 503)

    backend.reply = reply

    def program(s: Any) -> None:
        (fork,) = s.fork(1)
        fork += gen("x")
        s += fork["x"]

    assert isinstance(run(program).error(), BackendError)


def test_roles_have_to_match(backend: Any) -> None:
    def inside(s: Any) -> None:
        with s.user():
            s += assistant("a")

    def other(s: Any) -> None:
        s += user_begin()
        s += assistant_end()

    def none(s: Any) -> None:
        s += user_end()

    for program, message in ((inside, "inside one of 'user'"), (other, "'user'.s began"), (none, "none began")):
        with pytest.raises(LanguageError, match=message):
            run(program).text()


def test_unknown_names_say_which_are_known(backend: Any) -> None:
    state = run(lambda s: s.__iadd__(gen("x")))
    with pytest.raises(KeyError, match="'y' was generated; there are: x"):
        state["y"]
    with pytest.raises(KeyError):
        list(state.text_iter("y"))


@pytest.mark.parametrize("wrong", [None, 1, b"x"])
def test_only_text_and_expressions_are_appended(backend: Any, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"use str\(\)"):
        run(lambda s: s.__iadd__(wrong))


async def test_pieces_for_coroutines(backend: Any) -> None:
    backend.reply = lambda prompt: "héllo"

    def program(s: Any) -> None:
        s += user("q") + assistant(gen("x"))

    state = run(program, stream=True)
    pieces = [piece async for piece in state.text_async_iter()]
    assert "".join(pieces) == state.text()
    assert [piece async for piece in state.text_async_iter("x")] == list("héllo")
    pairs = [pair async for pair in state.text_async_iter("x", return_meta_data=True)]
    assert pairs == [
        (letter, {"length": index + 1, "output_token_logprobs": [index]}) for index, letter in enumerate("héllo")
    ]
    assert state.get_meta_info("x")["output_token_logprobs"] == [0, 1, 2, 3, 4]


async def test_a_piece_has_the_facts_of_the_tokens_without_text_before_it() -> None:
    class TwoTokensForOneCharacter(FakeBackend):
        def stream(self, prompt: Prompt, options: GenerationOptions) -> Generator[Completion, None, None]:
            yield Completion("", {"output_token_logprobs": [0]})
            yield Completion("é", {"output_token_logprobs": [0, 1]})
            yield Completion("", {"output_token_logprobs": [0, 1, 2]})

    state = function(lambda s: s.__iadd__("a" + gen("x"))).run(backend=TwoTokensForOneCharacter(), stream=True)
    pairs = [pair async for pair in state.text_async_iter("x", return_meta_data=True)]
    assert pairs == [("é", {"output_token_logprobs": [0, 1]})]
    assert state.get_meta_info("x")["output_token_logprobs"] == [0, 1, 2]


async def test_a_chosen_piece_has_facts_and_a_constant_one_has_none(backend: Any) -> None:
    def program(s: Any) -> None:
        with s.var_scope("all"):
            s += "a" + select("x", ["b"])

    state = run(program)
    chosen = [pair async for pair in state.text_async_iter("x", return_meta_data=True)]
    assert [(text, facts["temperature"]) for text, facts in chosen] == [("b", 0.0)]
    assert [pair async for pair in state.text_async_iter("all", return_meta_data=True)] == [("a", {}), ("b", {})]


async def test_coroutines_wait_without_blocking_the_loop(backend: Any) -> None:
    gate = threading.Event()
    backend.reply = lambda prompt: "ab" if gate.wait(240) else ""
    state = run(lambda s: s.__iadd__(gen("x")), stream=True)
    pieces = state.text_async_iter()
    import asyncio

    waiting = asyncio.ensure_future(anext(pieces))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    gate.set()
    assert await waiting == "a"
    assert [piece async for piece in pieces] == ["b"]


async def test_an_error_reaches_coroutines(backend: Any) -> None:
    backend.reply = lambda prompt: "ab!c"
    state = run(lambda s: s.__iadd__(gen("x")), stream=True)
    pieces = []
    with pytest.raises(BackendError, match="in the middle"):
        async for piece in state.text_async_iter("x"):
            pieces.append(piece)
    assert pieces == ["a", "b"]


def test_no_thread_is_left(backend: Any) -> None:
    states = [run(lambda s: s.__iadd__(gen("x"))) for _ in range(5)]
    assert all(state["x"] for state in states)
    for thread in threading.enumerate():
        if thread.name == "program-state":
            thread.join(30)
            assert not thread.is_alive()


def test_messages_as_statements_are_added_once(backend: Any) -> None:
    def program(s: Any) -> None:
        s.system("Be brief.")
        s += s.user("Hello")
        s.assistant(gen("word"))

    assert run(program).messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "<1>"},
    ]


def test_empty_messages(backend: Any) -> None:
    def program(s: Any) -> None:
        s += system() + user() + assistant()

    assert [message["content"] for message in run(program).messages()] == ["", "", ""]


def test_a_state_as_text(backend: Any) -> None:
    state = run(lambda s: s.__iadd__("a" + gen("x")))
    assert str(state) == f"{state}" == "ProgramState(a<1>)"
    state.set_var("y", 2)
    assert (state.get_var("x"), state.get_var("y")) == ("<1>", 2)


@pytest.mark.parametrize(("answer", "value"), [("True", True), (" False\n", False)])
def test_truth_values(backend: Any, answer: str, value: bool) -> None:
    backend.reply = lambda prompt: answer
    assert run(lambda s: s.__iadd__(gen("x", dtype=bool)))["x"] is value


@pytest.mark.parametrize("answer", ["true", "", "1"])
def test_other_words_are_no_truth_values(backend: Any, answer: str) -> None:
    backend.reply = lambda prompt: answer
    assert "asked for bool" in str(run(lambda s: s.__iadd__(gen("x", dtype=bool))).error())
