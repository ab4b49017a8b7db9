"""LangChain's ``OpenAIEmbeddings``, configured to send text, because its token ids are those of OpenAI's models."""

from __future__ import annotations

import json
import sys

from langchain_openai import OpenAIEmbeddings

model = OpenAIEmbeddings(
    model="demo", base_url=f"{sys.argv[1]}/v1", api_key="None", check_embedding_ctx_length=False, max_retries=0
)
texts = ["A man is eating food.", "Someone is having a meal.", "Stock prices fell sharply on Monday."]
print(json.dumps({"documents": model.embed_documents(texts), "query": model.embed_query(texts[0])}))
