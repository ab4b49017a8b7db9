"""Libraries for agents get from a real server what they are made for: tools in a loop, streams, outputs by schema."""

from __future__ import annotations

from typing import Any

import pytest

PARIS = "The capital of France is Paris."
TOKYO = "The capital of Japan is Tokyo."
KINDS = ["chat", "responses"]


@pytest.fixture(scope="module")
def agents_sdk(programs: Any, server: Any) -> Any:
    """What OpenAI's Agents SDK told."""
    return programs.python("agents_sdk", server.url, needs="agents")


@pytest.fixture(scope="module")
def pydantic_ai(programs: Any, server: Any) -> Any:
    """What pydantic-ai told."""
    return programs.python("pydantic_ai_agents", server.url, needs="pydantic_ai")


@pytest.mark.parametrize("kind", KINDS)
def test_agents_sdk(agents_sdk: Any, kind: str) -> None:
    found = agents_sdk[kind]
    assert (found["text"], found["next"], found["scored"]) == (PARIS, TOKYO, PARIS)
    assert found["usage"] > 20
    assert found["items"][:2] == ["tool_call_item", "tool_call_output_item"]
    assert found["items"][-1] == "message_output_item" and found["output"][0].startswith("sunny in ")
    kinds = found["kinds"]
    assert kinds.index("response.created") < kinds.index("response.function_call_arguments.delta")
    assert kinds.index("tool_called") < kinds.index("tool_output") < kinds.index("response.output_text.delta")
    assert kinds[-1] == "message_output_created" and kinds.count("response.completed") == kinds.count(
        "response.created"
    )
    assert found["agent"] == "plain"


@pytest.mark.parametrize("kind", KINDS)
def test_pydantic_ai(pydantic_ai: Any, kind: str) -> None:
    found = pydantic_ai[kind]
    assert found["text"] == "".join(found["pieces"]) == found["scored"] == PARIS
    assert found["next"] == TOKYO and len(found["pieces"]) > 3
    assert found["parts"][:3] == ["user-prompt", "tool-call", "tool-return"] and found["parts"][-1] == "text"
    assert all(city["name"] and 0 <= city["millions"] <= 99 for city in found["cities"])


def test_ai_sdk(programs: Any, server: Any) -> None:
    found = programs.node("ai_sdk", server.url, needs="@ai-sdk/openai-compatible")
    assert found["text"] == found["streamed"] == PARIS
    assert (found["reason"], found["usage"]) == ("stop", 23)
    assert found["kinds"].count("text-start") == found["kinds"].count("text-end") == 1
    assert found["kinds"].count("text-delta") > 3
    assert found["steps"] == ["tool-calls", "stop"] and found["results"][0].startswith("sunny in ")
    assert found["calls"].index("tool-input-start") < found["calls"].index("tool-call") < found["calls"].index("finish")
    assert found["object"].keys() == {"name", "country"}
    assert found["refusal"][0] == 400 and "temperature" in found["refusal"][1]


def test_langgraph(programs: Any, server: Any) -> None:
    found = programs.python("langgraph_loop", server.url, needs="langgraph")
    assert found["kinds"][:3] == ["human", "ai", "tool"] and found["kinds"][-1] == "ai"
    assert found["result"].startswith("sunny in ")
    assert "".join(found["pieces"]) == PARIS and len(found["pieces"]) > 3
    assert found["turns"] == ["human", "ai", "human", "ai"]


def test_llama_index(programs: Any, server: Any) -> None:
    found = programs.python("llama_index_llm", server.url, needs="llama_index.llms.openai_like")
    assert found["text"] == found["async"] == "".join(found["stream"]) == PARIS
    assert (found["usage"], found["calls"]) == (23, ["get_weather"])
    assert found["agent"] and all(result.startswith("sunny in ") for result in found["agent"])
    assert found["object"].keys() == {"name", "country"}


def test_haystack(programs: Any, server: Any) -> None:
    found = programs.python("haystack_pipeline", server.url, needs="haystack")
    assert found["text"] == "".join(found["pieces"]) == PARIS
    assert (found["reason"], found["usage"]) == ("stop", 23)
    assert found["roles"][:3] == ["user", "assistant", "tool"]
    assert all(result.startswith("sunny in ") for result in found["results"])


def test_anthropic_sdk(programs: Any, messages_server: Any) -> None:
    found = programs.python("anthropic_sdk", messages_server.url, needs="anthropic")
    assert found["text"] == "".join(found["pieces"]) == PARIS
    assert found["turns"] == found["streamed"]
    assert (found["turns"][0], found["turns"][-1]) == ("tool_use", "end_turn")
    assert set(found["called"]) == {"Boston"} and found["started"] > 0
