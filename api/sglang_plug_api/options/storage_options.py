"""The options of files and batches: a part of ``option_table``."""

from __future__ import annotations

from .option import Group, option

STORAGE = Group(
    "files and batches",
    (
        option(
            "--store",
            "store",
            "where files and batches are stored, and the responses if the store is for several servers",
            component="store",
        ),
        option(
            "--file-storage-path",
            "storage.file_storage_path",
            "folder of uploaded files and batches; default: sglang_plug_storage in $XDG_STATE_HOME or ~/.local/state",
        ),
        option(
            "--shared-storage",
            "shared_storage",
            "let every API key use the files, batches, responses and running requests of the others",
            bool,
        ),
        option("--max-file-bytes", "storage.max_file_bytes", "largest file that can be uploaded", int, minimum=1),
        option(
            "--max-storage-bytes", "storage.max_storage_bytes", "maximum number of bytes of all files", int, minimum=1
        ),
        option("--max-files", "storage.max_files", "maximum number of files", int, minimum=1),
        option(
            "--max-batch-lines", "storage.max_batch_lines", "maximum number of requests in one batch", int, minimum=1
        ),
        option(
            "--batch-concurrency",
            "storage.batch_concurrency",
            "maximum number of sequences of batches computed together",
            int,
            minimum=1,
        ),
    ),
)
