"""The table of plugins shows which plugin declares a component, and whether the component is usable."""

from __future__ import annotations

import json
from typing import Any

from sglang_plug import Plugins
from sglang_plug_api.lifecycle.plugin_table import plugin_table

RIVAL = """
    @hookimpl
    def register_cache_policies():
        yield EvictionSpec(name="lru", target=f"{__name__}:Rival")
        yield EvictionSpec(name="needy", target=f"{__name__}:Rival", needs=("a_library_nobody_has",))
    class Rival:
        def eviction_priority(self, node): return 0
"""


def row_of(plugins: Plugins, kind: str, name: str, distribution: str | None = None) -> dict[str, Any]:
    rows = [row for row in plugin_table(plugins)["components"] if (row["kind"], row["name"]) == (kind, name)]
    matching = [row for row in rows if distribution in (None, row["distribution"])]
    assert len(matching) == 1
    return matching[0]


def test_a_built_in_is_available(discover: Any) -> None:
    row = row_of(discover(), "eviction", "lru")
    assert (row["plugin"], row["distribution"], row["status"], row["reason"]) == (
        "eviction",
        "sglang-plug",
        "available",
        "",
    )


def test_the_table_is_plain_json(discover: Any, plugin_file: Any) -> None:
    table = plugin_table(discover(plugin_file("rival", RIVAL), plugin_file("broken", "1 / 0")))
    assert json.loads(json.dumps(table)) == table
    assert table.keys() == {"plugins", "components", "failures", "blocked", "askers", "disagreements"}


def test_a_missing_library_is_a_reason(discover: Any, plugin_file: Any) -> None:
    row = row_of(discover(plugin_file("rival", RIVAL)), "eviction", "needy")
    assert (row["status"], row["reason"]) == ("unavailable", "not installed: a_library_nobody_has")


def test_a_clash_names_the_rival_until_one_is_preferred(discover: Any, plugin_file: Any) -> None:
    file = plugin_file("rival", RIVAL)
    clashing = discover(file)
    ours, theirs = row_of(clashing, "eviction", "lru", "sglang-plug"), row_of(clashing, "eviction", "lru", file)
    assert ours["status"] == theirs["status"] == "clash"
    assert "plugin 'rival'" in ours["reason"]
    assert "plugin 'eviction'" in theirs["reason"]
    settled = discover(file, prefer={"eviction:lru": file})
    assert row_of(settled, "eviction", "lru", file)["status"] == "available"
    assert row_of(settled, "eviction", "lru", "sglang-plug")["status"] == "unused"


def test_failures_and_blocked_plugins_are_listed(discover: Any, plugin_file: Any) -> None:
    broken, blocked = plugin_file("broken", "1 / 0"), plugin_file("silent", "1 / 0")
    table = plugin_table(discover(broken, blocked, block=("silent", "eviction:lfu")))
    assert [row["name"] for row in table["failures"]] == ["broken"]
    assert "ZeroDivisionError" in table["failures"][0]["error"]
    assert [row["name"] for row in table["blocked"]] == ["silent", "eviction:lfu"]
    status = {row["name"]: row["status"] for row in table["plugins"]}
    assert (status["broken"], status["silent"], status["eviction"]) == ("failed", "blocked", "loaded")
