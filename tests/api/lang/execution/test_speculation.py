"""Speculative generation: one request serves several ``gen``, and the text is what separate requests would generate."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_plug_lang import assistant, function, gen, select, user

CHARACTER = " Ada\nBirthday: 10 December\nJob: author\nEnd"


def form(s: Any) -> None:
    s += "Name:" + gen("name", stop="\n")
    s += "\nBirthday:" + gen("birthday", stop="\n")
    s += "\nJob:" + gen("job", stop=["!", "\n"])


def test_one_request_serves_all(backend: Any) -> None:
    backend.reply = lambda prompt: CHARACTER
    state = function(num_api_spec_tokens=64)(form).run(temperature=0)
    assert (state["name"], state["birthday"], state["job"]) == (" Ada", " 10 December", " author")
    assert state.text() == "Name: Ada\nBirthday: 10 December\nJob: author"
    (options,) = backend.options
    assert (options.max_tokens, options.stop, options.temperature) == (64, None, 0)
    assert state.get_meta_info("birthday")["finish_reason"] == "stop"


def test_without_it_every_gen_is_a_request(backend: Any) -> None:
    backend.reply = lambda prompt: " x"
    assert function(form).run()["job"] == " x"
    assert [options.stop for options in backend.options] == ["\n", "\n", ["!", "\n"]]


def test_text_that_differs_is_generated_again(backend: Any) -> None:
    backend.reply = lambda prompt: " Ada\nAge: 3\n" if prompt.text == "Name:" else " 10 December\nJob: author"
    state = function(num_api_spec_tokens=64)(form).run()
    assert state.text() == "Name: Ada\nBirthday: 10 December\nJob: author"
    assert [prompt.text for prompt in backend.prompts] == ["Name:", "Name: Ada\nBirthday:"]


def test_text_that_was_cut_off_is_generated_again(backend: Any) -> None:
    """An answer that the first request cut off is generated again instead of being used as a complete one."""

    def program(s: Any) -> None:
        s += "a" + gen("x", stop=";") + ";" + gen("y", stop=";")

    backend.reply = lambda prompt: "one;tw" if prompt.text == "a" else "two;"
    backend.meta_info = {"finish_reason": {"type": "length"}}
    state = function(num_api_spec_tokens=2)(program).run()
    assert (state["x"], state["y"]) == ("one", "two")
    assert state.get_meta_info("y")["finish_reason"] == {"type": "stop", "matched": ";"}


def test_a_finished_answer_may_end_without_the_stop_string(backend: Any) -> None:
    def program(s: Any) -> None:
        s += "a" + gen("x", stop=";") + ";" + gen("y", stop=";")

    backend.reply = lambda prompt: "one;two"
    backend.meta_info = {"finish_reason": {"type": "stop"}}
    state = function(num_api_spec_tokens=8)(program).run()
    assert (state["y"], len(backend.prompts)) == ("two", 1)


@pytest.mark.parametrize(
    "own",
    [
        {"stop": ";", "max_tokens": 3},
        {"stop": ";", "regex": "a+"},
        {"stop": ";", "n": 2},
        {"stop": ";", "return_logprob": True},
        {"dtype": int},
        {},
    ],
    ids=str,
)
def test_other_options_need_their_own_request(backend: Any, own: Any) -> None:
    backend.reply = lambda prompt: "7"
    function(num_api_spec_tokens=8)(lambda s: s.__iadd__("a" + gen("x", **own))).run().sync()
    (options,) = backend.options
    assert options == gen("x", **own).options


@pytest.mark.parametrize("default", [{"regex": "a+"}, {"n": 2}, {"return_logprob": True}, {"min_tokens": 2}], ids=str)
def test_defaults_that_hold_for_one_gen_only_need_their_own_request(backend: Any, default: Any) -> None:
    function(num_api_spec_tokens=8)(lambda s: s.__iadd__("a" + gen("x", stop=";"))).run(**default).sync()
    assert backend.options[0].stop == ";"


def test_a_message_or_a_choice_between_ends_the_speculation(backend: Any) -> None:
    backend.reply = lambda prompt: "1;2;3;"

    def program(s: Any) -> None:
        s += user("q") + assistant(gen("x", stop=";"))
        s += user("q") + assistant(gen("y", stop=";") + ";" + select("z", ["0", "9"]) + gen("w", stop=";"))

    state = function(num_api_spec_tokens=8)(program).run()
    assert [state[name] for name in "xyzw"] == ["1", "1", "9", "1"]
    assert len(backend.prompts) == 4


def test_forks_speculate_on_their_own(backend: Any) -> None:
    backend.reply = lambda prompt: "1;2;"

    def program(s: Any) -> None:
        s += gen("x", stop=";")
        forks = s.fork(2)
        forks += ";" + gen("y", stop=";") + ";" + gen("z", stop=";")
        forks.join()

    state = function(num_api_spec_tokens=8)(program).run()
    assert (state["y"], state["z"], len(backend.prompts)) == (["1", "1"], ["2", "2"], 3)


def test_streams_speculate_too(backend: Any) -> None:
    backend.reply = lambda prompt: CHARACTER
    state = function(num_api_spec_tokens=64)(form).run(stream=True)
    assert "".join(state.text_iter()) == "Name: Ada\nBirthday: 10 December\nJob: author"
    assert len(backend.prompts) == 1


def test_a_bound_program_keeps_the_limit(backend: Any) -> None:
    @function(num_api_spec_tokens=5)
    def program(s: Any, text: str) -> None:
        s += text + gen("x", stop=";")

    program.bind(text="a").run().sync()
    assert backend.options[0].max_tokens == 5


@pytest.mark.parametrize("limit", [0, -1])
def test_the_limit_is_at_least_one(limit: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        function(form, num_api_spec_tokens=limit)
