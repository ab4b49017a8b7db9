"""Recognition of errors that say that memory did not suffice, of a device or of the host."""

from __future__ import annotations

import torch

SIGNS = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Parts of the messages of torch's allocators, CUDA's driver, Triton and cuBLAS."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Report whether ``error``, or an error in its chain, says that memory did not suffice.

    A capture that fails for lack of memory ends with another error, which has the first one as its context.
    """
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS):
            return True
        error = error.__cause__ or error.__context__
    return False
