"""A graph of LangGraph: a model and its tools in a loop, with a memory of earlier turns."""

from __future__ import annotations

import json
import sys
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


plain = ChatOpenAI(
    model="demo", base_url=f"{sys.argv[1]}/v1", api_key="None", temperature=0, max_retries=0, max_tokens=100
)
model = plain.bind_tools([get_weather], strict=True)


def call_model(state: MessagesState) -> dict[str, Any]:
    """Call the model with the messages so far."""
    return {"messages": [model.invoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node("model", call_model)
builder.add_node("tools", ToolNode([get_weather]))
builder.add_edge(START, "model")
builder.add_conditional_edges("model", tools_condition)
builder.add_edge("tools", "model")
graph = builder.compile(checkpointer=InMemorySaver())


def turn(text: str, thread: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the input and the configuration of a turn."""
    return {"messages": [HumanMessage(text)]}, {"configurable": {"thread_id": thread}}


weather = graph.invoke(*turn("What's the weather like in Boston today?", "weather"))["messages"]
pieces = [
    piece.content for piece, _ in graph.stream(*turn("What is the capital of France?", "x"), stream_mode="messages")
]
again = graph.invoke(*turn("What is the capital of Japan?", "x"))["messages"]
print(
    json.dumps(
        {
            "kinds": [message.type for message in weather],
            "result": weather[2].content,
            "pieces": pieces,
            "turns": [message.type for message in again],
        }
    )
)
