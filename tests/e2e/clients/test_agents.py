"""Agent libraries work with a real server: tools in a loop, streams, outputs of a schema."""

from __future__ import annotations

from typing import Any

import pytest

PARIS = "The capital of France is Paris."
TOKYO = "The capital of Japan is Tokyo."
KINDS = ["chat", "responses"]


@pytest.fixture(scope="module")
def agents_sdk(programs: Any, server: Any) -> Any:
    """The report of the program with OpenAI's Agents SDK."""
    return programs.python("agents_sdk", server.url, needs="agents")


@pytest.fixture(scope="module")
def pydantic_ai(programs: Any, server: Any) -> Any:
    """The report of the program with pydantic-ai."""
    return programs.python("pydantic_ai_agents", server.url, needs="pydantic_ai")


@pytest.mark.parametrize("kind", KINDS)
def test_agents_sdk(agents_sdk: Any, kind: str) -> None:
    report = agents_sdk[kind]
    assert (report["text"], report["next"], report["scored"]) == (PARIS, TOKYO, PARIS)
    assert report["usage"] > 20
    assert report["items"][:2] == ["tool_call_item", "tool_call_output_item"]
    assert report["items"][-1] == "message_output_item" and report["output"][0].startswith("sunny in ")
    kinds = report["kinds"]
    assert kinds.index("response.created") < kinds.index("response.function_call_arguments.delta")
    assert kinds.index("tool_called") < kinds.index("tool_output") < kinds.index("response.output_text.delta")
    assert kinds[-1] == "message_output_created" and kinds.count("response.completed") == kinds.count(
        "response.created"
    )
    assert report["agent"] == "plain"


@pytest.mark.parametrize("kind", KINDS)
def test_pydantic_ai(pydantic_ai: Any, kind: str) -> None:
    report = pydantic_ai[kind]
    assert report["text"] == "".join(report["pieces"]) == report["scored"] == PARIS
    assert report["next"] == TOKYO and len(report["pieces"]) > 3
    assert report["parts"][:3] == ["user-prompt", "tool-call", "tool-return"] and report["parts"][-1] == "text"
    assert all(city["name"] and 0 <= city["millions"] <= 99 for city in report["cities"])


def test_ai_sdk(programs: Any, server: Any) -> None:
    report = programs.node("ai_sdk", server.url, needs="@ai-sdk/openai-compatible")
    assert report["text"] == report["streamed"] == PARIS
    assert (report["reason"], report["usage"]) == ("stop", 23)
    assert report["kinds"].count("text-start") == report["kinds"].count("text-end") == 1
    assert report["kinds"].count("text-delta") > 3
    assert report["steps"] == ["tool-calls", "stop"] and report["results"][0].startswith("sunny in ")
    assert (
        report["calls"].index("tool-input-start") < report["calls"].index("tool-call") < report["calls"].index("finish")
    )
    assert report["object"].keys() == {"name", "country"}
    assert report["refusal"][0] == 400 and "temperature" in report["refusal"][1]


def test_langgraph(programs: Any, server: Any) -> None:
    report = programs.python("langgraph_loop", server.url, needs="langgraph")
    assert report["kinds"][:3] == ["human", "ai", "tool"] and report["kinds"][-1] == "ai"
    assert report["result"].startswith("sunny in ")
    assert "".join(report["pieces"]) == PARIS and len(report["pieces"]) > 3
    assert report["turns"] == ["human", "ai", "human", "ai"]


def test_llama_index(programs: Any, server: Any) -> None:
    report = programs.python("llama_index_llm", server.url, needs="llama_index.llms.openai_like")
    assert report["text"] == report["async"] == "".join(report["stream"]) == PARIS
    assert (report["usage"], report["calls"]) == (23, ["get_weather"])
    assert report["agent"] and all(result.startswith("sunny in ") for result in report["agent"])
    assert report["object"].keys() == {"name", "country"}


def test_haystack(programs: Any, server: Any) -> None:
    report = programs.python("haystack_pipeline", server.url, needs="haystack")
    assert report["text"] == "".join(report["pieces"]) == PARIS
    assert (report["reason"], report["usage"]) == ("stop", 23)
    assert report["roles"][:3] == ["user", "assistant", "tool"]
    assert all(result.startswith("sunny in ") for result in report["results"])


def test_anthropic_sdk(programs: Any, messages_server: Any) -> None:
    report = programs.python("anthropic_sdk", messages_server.url, needs="anthropic")
    assert report["text"] == "".join(report["pieces"]) == PARIS
    assert report["turns"] == report["streamed"]
    assert (report["turns"][0], report["turns"][-1]) == ("tool_use", "end_turn")
    assert set(report["called"]) == {"Boston"} and report["started"] > 0
