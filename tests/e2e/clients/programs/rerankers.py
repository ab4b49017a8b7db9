"""Reranking with both versions of Cohere's client, and with LlamaIndex's client of Jina's API."""

from __future__ import annotations

import json
import sys

import cohere
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.jinaai_rerank import JinaRerank

QUERY = "What is the capital of France?"
DOCUMENTS = ["Cats sleep all day.", "Paris is the capital of France.", "It rains."]

answers = {
    name: kind(api_key="None", base_url=sys.argv[1]).rerank(model="demo", query=QUERY, documents=DOCUMENTS, top_n=2)
    for name, kind in {"cohere-v1": cohere.Client, "cohere": cohere.ClientV2}.items()
}
jina = JinaRerank(api_key="None", model="demo", base_url=f"{sys.argv[1]}/v2", top_n=2)
nodes = [NodeWithScore(node=TextNode(text=text)) for text in DOCUMENTS]
sorted_nodes = jina.postprocess_nodes(nodes, query_str=QUERY)
print(
    json.dumps(
        {
            **{
                name: [(DOCUMENTS[result.index], result.relevance_score) for result in answer.results]
                for name, answer in answers.items()
            },
            "jina": [(node.node.text, node.score) for node in sorted_nodes],
        }
    )
)
