"""The columns of a dumped record of experts: of the table, and names of the tensors that hold them."""

from __future__ import annotations

COLUMNS = ("layer_id", "expert_id", "count")
