"""The page on the architecture lists the files that a chat request really passes."""

from __future__ import annotations

from tests.policy.request_trace import described_files, trace_chat_request
from tests.policy.source_tree import ROOT

ONLY_BETWEEN_PROCESSES = {
    "core/sglang_plug/engine/messages/api_messages.py",
    "core/sglang_plug/engine/processes/worker.py",
}
"""Files that a request passes on its way to an engine in another process; the traced one runs in a thread."""


def test_code_of_each_listed_file_runs_for_a_chat_request() -> None:
    files = described_files()
    assert len(set(files)) == len(files) > 0
    assert not [file for file in files if not (ROOT / file).is_file()]
    assert set(files) - trace_chat_request().files == ONLY_BETWEEN_PROCESSES
