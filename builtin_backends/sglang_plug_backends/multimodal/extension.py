"""The step extension of images in prompts: it admits and lays out prompts, and prepares the inputs of steps."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from sglang_plug import (
    AdmissionPhase,
    CachePhase,
    ChunkView,
    ExtensionContext,
    ForwardBatch,
    HoldPhase,
    InputPhase,
    Kernels,
    MediaLimits,
    Model,
    ModelPhase,
    PrefixPool,
    ProfilingPhase,
    PromptLayout,
    RankPhase,
    RankStep,
    ReadySequence,
    Request,
    RequestError,
    SequenceView,
    StepExtension,
    TensorStore,
    TensorStorePhase,
)

from .image_inputs import are_loaded, begin_loads, largest_media, layout_of, multimodal_inputs
from .worker_rank import WorkerRankMultimodal, encode_inputs

MAX_BYTES = 8 << 30
"""Largest total size of the preprocessed images of all requests in the engine."""


class Multimodal(
    StepExtension,
    AdmissionPhase,
    HoldPhase,
    ModelPhase,
    InputPhase,
    RankPhase,
    CachePhase,
    TensorStorePhase,
    ProfilingPhase,
):
    """Serves prompts with images, and prompts given as input embeddings.

    If another extension has a store for tensors, the embeddings of images are put into it, and requests are held while
    those of their images are loaded.

    Args:
        max_bytes: largest total size of the images of all requests that are not over, in host memory.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._model: Model | None = None
        self._prefixes: PrefixPool | None = None
        self._store: TensorStore | None = None
        self._held: dict[str, SequenceView] = {}
        self._open_requests = 0
        """Number of requests with images that are not over."""
        self.bytes = 0
        """Total size of the images of all requests that are not over."""

    def install(self, model: Model, kernels: Kernels) -> None:
        """Encode images with ``model`` from now on."""
        self._model = model

    def use_prefixes(self, prefixes: PrefixPool) -> None:
        """Use ``prefixes`` to skip loading images in cached prefixes."""
        self._prefixes = prefixes

    def use_tensor_store(self, store: TensorStore) -> None:
        """Store the embeddings of images in ``store``."""
        self._store = store

    def admit(self, sequence: SequenceView) -> None:
        """Count the bytes of the images of a request.

        Raises ``RequestError`` if those of all requests would take too much of the host's memory.
        """
        if not sequence.request.media:
            return
        size = sum(media.size for media in sequence.request.media)
        if self.bytes + size > self._max_bytes:
            raise RequestError(
                f"Too many images are waiting ({self.bytes + size} bytes with these); try again later.", 503
            )
        sequence.extras[self] = size
        self.bytes += size
        self._open_requests += 1

    def layout(self, sequence: SequenceView) -> PromptLayout | None:
        """Return the positions and cache tokens of a prompt with images.

        Raises ``RequestError`` if the images do not fit the model, or are not within the prompt.
        """
        return layout_of(self._served, sequence.request) if sequence.request.media else None

    def hold(self, sequence: SequenceView) -> bool:
        """Begin to load the embeddings of the images whose keys and values are not cached."""
        if self._store is None or not sequence.request.media:
            return False
        cached = 0 if self._prefixes is None else self._prefixes.cached(sequence)
        if begin_loads(sequence, self._store, cached):
            self._held[sequence.request.id] = sequence
            return True
        return False

    def ready(self) -> Ordered[ReadySequence]:
        """Return the requests whose embeddings are loaded, or are not waited for any longer."""
        ready = [sequence for sequence in self._held.values() if are_loaded(sequence)]
        for sequence in ready:
            del self._held[sequence.request.id]
        return [ReadySequence(sequence) for sequence in ready]

    def finished(self, sequence: SequenceView) -> None:
        """Discount the bytes of the images of a request that is over."""
        if (size := sequence.extras.pop(self, None)) is not None:
            self._held.pop(sequence.request.id, None)
            self.bytes -= size
            self._open_requests -= 1

    def prepare(self, chunks: Ordered[ChunkView], batch: ForwardBatch) -> None:
        """Set the embeddings of the images in the step, which are encoded if they are not yet."""
        if self._open_requests and any(
            chunk.sequence.layout is not None and chunk.start < chunk.sequence.prompt_len for chunk in chunks
        ):
            batch.multimodal = multimodal_inputs(self._served, chunks, batch.input_ids.device, self._store)

    def rank_step(self, chunks: Ordered[ChunkView], batch: ForwardBatch) -> RankStep | None:
        """Return the embeddings of the images in the step, which only rank 0 encodes."""
        return None if batch.multimodal is None else encode_inputs(batch.multimodal)

    def largest_request(self, tokens: int) -> Request | None:
        """Return a request whose images fill one encoder call; ``None`` if the model gives no example of an image."""
        media = largest_media(self._served, min(MediaLimits().tokens, tokens))
        return Request(id="images", tokens=(0,) * (media[-1].end + 1), media=media) if media else None

    @property
    def _served(self) -> Model:
        assert self._model is not None, "install() is called before any request is admitted"
        return self._model


def build(context: ExtensionContext) -> StepExtension:
    """Return the extension, which refuses images if the model takes none."""
    return WorkerRankMultimodal() if context.ranks.rank > 0 else Multimodal(MAX_BYTES)
