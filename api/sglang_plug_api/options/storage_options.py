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
        option("--max-file-bytes", "storage.max_file_bytes", "largest file that can be uploaded", int, least=1),
        option("--max-storage-bytes", "storage.max_storage_bytes", "most bytes of all files", int, least=1),
        option("--max-files", "storage.max_files", "most files", int, least=1),
        option("--max-batch-lines", "storage.max_batch_lines", "most requests in one batch", int, least=1),
        option(
            "--batch-concurrency",
            "storage.batch_concurrency",
            "most sequences of batches computed together",
            int,
            least=1,
        ),
    ),
)
