"""LangChain's ``ChatOpenAI``, used as in its documentation."""

from __future__ import annotations

import asyncio
import json
import sys

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

QUESTION = "What is the capital of {country}?"

model = ChatOpenAI(model="demo", base_url=f"{sys.argv[1]}/v1", api_key="None", temperature=0, max_retries=0)
answer = model.invoke(QUESTION.format(country="France"))
turns = [
    SystemMessage("You are a helpful assistant."),
    HumanMessage(QUESTION.format(country="Japan")),
    AIMessage("The capital of Japan is Tokyo."),
    HumanMessage(QUESTION.format(country="France")),
]
chain = ChatPromptTemplate.from_messages([("user", QUESTION)]) | model | StrOutputParser()
results = {
    "invoke": answer.content,
    "usage": answer.usage_metadata,
    "reason": answer.response_metadata["finish_reason"],
    "stream": [chunk.content for chunk in model.stream(QUESTION.format(country="France"))],
    "batch": chain.batch([{"country": "France"}, {"country": "Japan"}]),
    "turns": model.invoke(turns).content,
    "async": asyncio.run(model.ainvoke(QUESTION.format(country="France"))).content,
    "stop": model.bind(stop=["Paris"]).invoke(QUESTION.format(country="France")).content,
}
print(json.dumps(results))
