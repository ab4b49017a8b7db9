"""Bodies of the OpenAI-like routes of pooling tasks."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from sglang_plug_api.answers.errors import WrongField

from .base import Integer, Many, Name, Prompts, RequestBody, SharedFields, Side, TruncatedLength
from .misplaced import POOLING, Remedies

MAX_DOCUMENTS = 65536


class TruncatedBody(SharedFields):
    """A body whose texts may be cut to the length that the model can read."""

    misplaced: ClassVar[Remedies] = POOLING

    model: Name | None = None
    truncate_prompt_tokens: TruncatedLength | None = None
    truncation_side: Side | None = None
    rid: Name | None = None


class InputBody(TruncatedBody):
    """One text or several, as text or as token ids."""

    input: Prompts
    add_special_tokens: bool = True
    """Add the special tokens that the model expects around a text."""

    @field_validator("input")
    @classmethod
    def _check_input(cls, input: Prompts) -> Prompts:
        if not input:
            raise ValueError("Input cannot be empty")
        for index, entry in enumerate(input if isinstance(input, list) else ()):
            if entry in ("", []):
                raise ValueError(f"Input cannot be empty: entry {index} is")
        return input

    def inputs(self) -> list[Any]:
        """Return one entry for each text: a string, or a list of token ids."""
        if isinstance(self.input, str) or isinstance(self.input[0], int):
            return [self.input]
        return list(self.input)


class EmbeddingsBody(InputBody):
    """``POST /v1/embeddings``."""

    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Integer | None = Field(None, ge=1)


class ClassifyBody(InputBody):
    """``POST /v1/classify``."""


class Document(RequestBody):
    """A document given as an object."""

    text: str


AnyDocument = Annotated[
    Annotated[str, Tag("Text")] | Annotated[Document, Tag("Document")],
    Discriminator(lambda document: "Text" if isinstance(document, str) else "Document"),
]


class RerankBody(TruncatedBody):
    """``POST /v1/rerank``."""

    query: str
    documents: Annotated[Many[AnyDocument], Field(max_length=MAX_DOCUMENTS)] | None = None
    texts: Annotated[Many[str], Field(max_length=MAX_DOCUMENTS)] | None = None
    """Instead of documents, as clients of Text Embeddings Inference write them; the answer is as they read it."""
    raw_scores: bool = False
    """Answer ``texts`` with the scores of the model instead of those between 0 and 1."""
    return_text: bool = False
    """Answer ``texts`` with each text next to its score."""
    truncate: bool | None = None
    """Truncate those of ``texts`` that are too long."""
    top_n: Integer | None = Field(None, ge=1)
    return_documents: bool = True
    instruct: str | None = None
    """The intent of the query; only for models that are asked in words."""
    max_tokens_per_doc: Integer | None = Field(None, ge=0)
    """Tokens of a document that are read; the rest is left out. 0: all are read."""

    @field_validator("query")
    @classmethod
    def _check_query(cls, query: str) -> str:
        if not query.strip():
            raise ValueError("Query cannot be empty")
        return query

    @field_validator("documents", "texts")
    @classmethod
    def _check_documents(cls, documents: list[str | Document] | None) -> list[str | Document] | None:
        if documents is None:
            return None
        if not documents:
            raise ValueError("Documents cannot be empty")
        for index, document in enumerate(documents):
            if not (document if isinstance(document, str) else document.text).strip():
                raise ValueError(f"Documents cannot be empty: entry {index} is")
        return documents

    @model_validator(mode="after")
    def _one_list(self) -> RerankBody:
        if self.documents is None and self.texts is None:
            raise WrongField("documents", "documents: Field required")
        if self.documents is not None and self.texts is not None:
            raise WrongField("texts", "give either documents or texts")
        for name in ("raw_scores", "return_text", "truncate") if self.texts is None else ():
            if getattr(self, name):
                raise WrongField(name, f"{name} has no effect on documents; send texts")
        if self.truncate and self.truncate_prompt_tokens is None:
            self.truncate_prompt_tokens = -1
        return self

    def document_texts(self) -> list[str]:
        """Return the documents as text."""
        documents = self.texts if self.documents is None else self.documents
        return [document if isinstance(document, str) else document.text for document in documents or ()]
