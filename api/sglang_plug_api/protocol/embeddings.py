"""Bodies of the OpenAI-like routes of pooling tasks."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from .base import DeadlineMs, Integer, Many, Name, Prompts, RequestBody
from .misplaced import ADAPTED, Remedies

MAX_DOCUMENTS = 65536


class InputBody(RequestBody):
    """One text or several, as text or as token ids."""

    misplaced: ClassVar[Remedies] = ADAPTED

    model: Name | None = None
    input: Prompts
    rid: Name | None = None
    priority: Integer | None = None
    deadline_ms: DeadlineMs = None
    user: str | None = None

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


class RerankBody(RequestBody):
    """``POST /v1/rerank``."""

    misplaced: ClassVar[Remedies] = ADAPTED

    model: Name | None = None
    query: str
    documents: Annotated[Many[AnyDocument], Field(max_length=MAX_DOCUMENTS)]
    top_n: Integer | None = Field(None, ge=1)
    return_documents: bool = True
    instruct: str | None = None
    """The intent of the query; only for models that are asked in words."""
    rid: Name | None = None
    priority: Integer | None = None
    deadline_ms: DeadlineMs = None
    user: str | None = None

    @field_validator("query")
    @classmethod
    def _check_query(cls, query: str) -> str:
        if not query.strip():
            raise ValueError("Query cannot be empty")
        return query

    @field_validator("documents")
    @classmethod
    def _check_documents(cls, documents: list[str | Document]) -> list[str | Document]:
        if not documents:
            raise ValueError("Documents cannot be empty")
        for index, document in enumerate(documents):
            if not (document if isinstance(document, str) else document.text).strip():
                raise ValueError(f"Documents cannot be empty: entry {index} is")
        return documents

    def texts(self) -> list[str]:
        """Return the documents as text."""
        return [document if isinstance(document, str) else document.text for document in self.documents]
