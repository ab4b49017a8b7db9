"""The rules of the plugin system, tested through real entry points."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_plug import EngineConfig, Facts, PluginError, PluginOptions, Plugins, PrefixCache
from sglang_plug.config import CacheOptions, ConfigError

Install = Callable[..., Path]

LRU_TWO = """
    @hookimpl
    def register_cache_policies():
        return [EvictionSpec(name="lru", target=f"{__name__}:Two")]
    class Two: ...
"""
WORKING = """
    @hookimpl
    def register_cache_policies():
        yield EvictionSpec(name="mine", target=f"{__name__}:Mine", settings=f"{__name__}:Knobs")
    class Mine: ...
    from dataclasses import dataclass
    @dataclass
    class Knobs:
        size: int = 3
"""
BROKEN = {
    "import": (
        "import a_module_that_is_not_there",
        "ModuleNotFoundError: No module named 'a_module_that_is_not_there'",
    ),
    "syntax": ("def (", "SyntaxError"),
    "hook": ("@hookimpl\ndef register_models():\n    1 / 0", "ZeroDivisionError: division by zero"),
    "version": ("api_version = 99", "needs plugin API 99, this is API 1"),
    "typo": ("@hookimpl\ndef register_model():\n    return []", "unknown hook 'register_model'; did you mean"),
    "junk": (
        "@hookimpl\ndef register_models():\n    return ['x']",
        "register_models() returned 'x', which is not",
    ),
}


def discover(**options: Any) -> Plugins:
    return Plugins.discover(PluginOptions(**options))


class TestBroken:
    @pytest.mark.parametrize(("source", "message"), BROKEN.values(), ids=list(BROKEN))
    def test_a_plugin_nobody_selected_stops_nothing_and_is_named(
        self, install: Install, source: str, message: str
    ) -> None:
        install("sglang-broken", source, version="0.3")
        plugins = discover()
        (failure,) = plugins.failures
        assert str(failure).startswith("plugin 'sglang-broken' of sglang-broken 0.3 failed: ")
        assert message in str(failure)
        assert "Traceback" in failure.trace
        assert "sglang-broken" not in [name for name, _, _ in plugins.fingerprint]
        assert plugins.get("eviction", "lru").plugin.distribution == "sglang-plug"

    @pytest.mark.parametrize(("source", "message"), BROKEN.values(), ids=list(BROKEN))
    def test_strict_makes_it_fatal(self, install: Install, source: str, message: str) -> None:
        install("sglang-broken", source)
        with pytest.raises(PluginError, match="plugin 'sglang-broken' of .* failed: .*(--strict-plugins)") as error:
            discover(strict=True)
        assert message in str(error.value)
        assert error.value.__cause__ is not None

    def test_what_it_declared_before_it_failed_is_not_offered(self, install: Install) -> None:
        source = """
            @hookimpl
            def register_cache_policies():
                yield EvictionSpec(name="half", target="x:y")
                raise RuntimeError("half way")
            @hookimpl
            def choose_component(kind):
                return "half"
        """
        install("sglang-half", source)
        plugins = discover()
        assert "half" not in plugins.names("eviction")
        assert plugins.choose("eviction", Facts()) == "lru"

    @pytest.mark.parametrize(
        ("target", "cause"),
        [
            ("no_such_module:Thing", "ModuleNotFoundError: No module named 'no_such_module'"),
            ("sglang_selected:Absent", "AttributeError: .*no attribute 'Absent'"),
            ("sglang_explodes:Thing", "RuntimeError: no driver"),
        ],
    )
    def test_a_target_that_fails_when_selected_names_everyone(self, install: Install, target: str, cause: str) -> None:
        source = f"""
            @hookimpl
            def register_cache_policies():
                return [EvictionSpec(name="bad", target="{target}")]
        """
        install("sglang-selected", source, version="4.2", files={"sglang_explodes": "raise RuntimeError('no driver')"})
        component = discover().get("eviction", "bad")
        named = r"eviction 'bad' from sglang-selected 4.2 \(plugin 'sglang-selected'\) could not be imported from "
        with pytest.raises(PluginError, match=f"{named}'{target}': {cause}"):
            component.load()

    def test_a_target_that_is_not_of_the_contract_is_refused(self) -> None:
        component = discover().get("eviction", "lru")
        with pytest.raises(PluginError, match="eviction 'lru' from sglang-plug .* must be a subclass of PrefixCache"):
            component.load(PrefixCache)


class TestNames:
    def test_an_unknown_name_gets_the_nearest_one(self) -> None:
        with pytest.raises(PluginError, match="no eviction named 'lruu'; did you mean 'lru'?"):
            discover().get("eviction", "lruu")

    def test_an_unknown_name_like_no_other_gets_them_all(self) -> None:
        with pytest.raises(PluginError, match="no eviction named 'zzzz'; known: fifo, lfu, lru, priority"):
            discover().get("eviction", "zzzz")

    def test_a_name_that_the_options_exclude_says_so(self) -> None:
        with pytest.raises(PluginError, match="eviction 'lru' .* is excluded by --block-plugin or --plugins"):
            discover(block=("eviction:lru",)).get("eviction", "lru")
        with pytest.raises(PluginError, match="no eviction is declared; excluded by .*: eviction, schedule$"):
            discover(block=("eviction", "schedule")).get("eviction", "lru")

    def test_an_unknown_name_mentions_the_plugins_that_failed(self, install: Install) -> None:
        install("sglang-broken", "import a_module_that_is_not_there")
        with pytest.raises(
            PluginError, match="'zzzz'; known: .*\n  plugin 'sglang-broken' of sglang-broken 1.0 failed"
        ):
            discover().get("eviction", "zzzz")

    def test_a_kind_that_nobody_declares(self) -> None:
        with pytest.raises(PluginError, match="no flavour named 'x'; no flavour is declared"):
            discover().get("flavour", "x")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"block": ("evictoin",)}, "--block-plugin: no plugin named 'evictoin'; did you mean 'eviction'?"),
            ({"allow": ("evictoin",)}, "--plugins: no plugin named 'evictoin'; did you mean 'eviction'?"),
            ({"prefer": {"eviction:lruu": "x"}}, "--prefer: nothing declares 'eviction:lruu'; did you mean 'eviction:"),
            ({"settings": {"lruu": {"a": 1}}}, "--set: no component named 'lruu'; did you mean 'lru'?"),
        ],
    )
    def test_a_typo_in_an_option_is_an_error(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(PluginError) as error:
            discover(**options)
        assert message in str(error.value)


class TestClash:
    def test_both_are_listed_and_others_stay_usable(self, install: Install) -> None:
        install("sglang-clash", LRU_TWO)
        plugins = discover()
        owners = [
            component.plugin.distribution for component in plugins.all("eviction") if component.spec.name == "lru"
        ]
        assert owners == ["sglang-plug", "sglang-clash"]
        assert plugins.get("eviction", "lfu").spec.name == "lfu"
        assert not plugins.failures

    def test_using_the_name_is_an_error_that_names_both_and_the_way_out(self, install: Install) -> None:
        install("sglang-clash", LRU_TWO)
        with pytest.raises(PluginError) as error:
            discover().get("eviction", "lru")
        for part in (
            "from sglang-plug 0",
            "from sglang-clash 1.0",
            "--prefer eviction:lru=",
            "sglang-plug, sglang-clash",
        ):
            assert part in str(error.value)

    @pytest.mark.parametrize("owner", ["sglang-plug", "sglang-clash"])
    def test_prefer_settles_it_either_way(self, install: Install, owner: str) -> None:
        install("sglang-clash", LRU_TWO)
        plugins = discover(prefer={"eviction:lru": owner})
        assert plugins.get("eviction", "lru").plugin.distribution == owner

    def test_preferring_somebody_who_does_not_declare_it_is_an_error(self) -> None:
        """The error is raised even if the name is not used, because the preference would otherwise have no effect
        unnoticed."""
        with pytest.raises(PluginError, match="--prefer eviction:lru=sglang-plg: .* did you mean 'sglang-plug'?"):
            discover(prefer={"eviction:lru": "sglang-plg"})

    def test_preferring_somebody_who_failed_tells_how(self, install: Install) -> None:
        install("sglang-broken", "import a_module_that_is_not_there")
        with pytest.raises(
            PluginError, match="known: sglang-plug\n  plugin 'sglang-broken' of sglang-broken 1.0 failed"
        ):
            discover(prefer={"eviction:lru": "sglang-broken"})

    def test_preferring_what_is_hidden_is_an_error_where_it_is_used(self, install: Install) -> None:
        install("sglang-clash", LRU_TWO)
        plugins = discover(prefer={"eviction:lru": "sglang-clash"}, allow=("eviction:lfu",))
        with pytest.raises(PluginError, match="'sglang-clash' is not among --plugins, only that of 'sglang-plug' is"):
            plugins.get("eviction", "lru")

    def test_blocking_one_of_the_two_settles_it_too(self, install: Install) -> None:
        install("sglang-clash", LRU_TWO)
        assert discover(block=("sglang-clash",)).get("eviction", "lru").plugin.distribution == "sglang-plug"


class TestNeeds:
    SOURCE = """
        @hookimpl
        def register_cache_policies():
            yield EvictionSpec(name="needy", target="x:y", needs=("json", "a_library", "a_library.part"))
            yield EvictionSpec(name="content", target="json:JSONDecoder", needs=("json",))
    """

    def test_it_is_listed_with_the_reason(self, install: Install) -> None:
        install("sglang-needy", self.SOURCE)
        plugins = discover()
        assert plugins.get("eviction", "needy").unavailable() == "not installed: a_library, a_library.part"
        assert plugins.get("eviction", "content").unavailable() == ""
        assert "a_library" not in sys.modules

    def test_selecting_it_is_an_error_with_the_reason(self, install: Install) -> None:
        install("sglang-needy", self.SOURCE)
        with pytest.raises(
            PluginError, match="'needy' from sglang-needy 1.0 .* is unavailable: not installed: a_library"
        ):
            discover().get("eviction", "needy").load()
        assert discover().get("eviction", "content").load().__name__ == "JSONDecoder"


class TestAllowAndBlock:
    @pytest.mark.parametrize("name", ["sglang-mine", "mine-by-another-name"])
    def test_a_blocked_plugin_is_never_imported(self, install: Install, name: str) -> None:
        folder = install("sglang-mine", WORKING)
        (folder / "sglang_mine-1.0.dist-info" / "entry_points.txt").write_text(
            "[sglang_plug]\nmine-by-another-name = sglang_mine\n"
        )
        plugins = discover(block=(name,))
        assert "sglang_mine" not in sys.modules
        assert [plugin.distribution for plugin in plugins.blocked] == ["sglang-mine"]
        assert "mine" not in plugins.names("eviction")

    def test_our_own_can_be_switched_off_like_any_other(self) -> None:
        plugins = discover(block=("eviction",))
        assert plugins.names("eviction") == []
        assert "eviction" not in [name for name, _, _ in plugins.fingerprint]

    def test_a_single_component_can_be_blocked(self) -> None:
        plugins = discover(block=("eviction:lfu",))
        assert "lfu" not in plugins.names("eviction")
        assert "lru" in plugins.names("eviction")

    def test_with_an_allow_list_only_these_and_our_own_are_imported(self, install: Install) -> None:
        install("sglang-mine", WORKING)
        install("sglang-other", LRU_TWO)
        plugins = discover(allow=("sglang-mine",))
        assert "sglang_other" not in sys.modules
        assert plugins.get("eviction", "mine").plugin.distribution == "sglang-mine"
        assert plugins.get("eviction", "lru").plugin.distribution == "sglang-plug"

    def test_an_allow_list_may_name_components(self, install: Install) -> None:
        install("sglang-mine", WORKING)
        install("sglang-other", LRU_TWO)
        plugins = discover(allow=("eviction:mine",))
        assert plugins.get("eviction", "mine").plugin.distribution == "sglang-mine"
        assert plugins.get("eviction", "lru").plugin.distribution == "sglang-plug"


class TestFilesAndFolders:
    def test_a_file_named_by_the_user_passes_the_allow_list(self, tmp_path: Path) -> None:
        file = tmp_path / "one_policy.py"
        file.write_text(
            "from sglang_plug import EvictionSpec, hookimpl\n"
            "@hookimpl\ndef register_cache_policies():\n"
            "    return [EvictionSpec(name='single', target=f'{__name__}:Single')]\n"
            "class Single:\n    def eviction_priority(self, node): return node.used\n"
        )
        plugins = discover(files=(str(file),), allow=("eviction",))
        component = plugins.get("eviction", "single")
        assert component.load()().eviction_priority.__name__ == "eviction_priority"
        assert component.plugin.distribution == str(file)

    def test_a_folder_of_projects_needs_no_installation(self) -> None:
        folder = Path(__file__).parents[3] / "plugins"
        plugins = discover(dirs=(str(folder),))
        assert plugins.failures == []
        component = plugins.get("eviction", "slru")
        assert (component.plugin.distribution, component.plugin.version) == ("sglang-plug-slru", "0.1.0")
        assert component.load()(component.settings()).protected_hits == 2
        assert plugins.get("model", "GPTNeoXForCausalLM").load().__name__ == "GPTNeoX"


def test_the_fingerprint_names_every_loaded_plugin_in_order(install: Install) -> None:
    install("sglang-mine", WORKING, version="7.7")
    plugins = discover()
    assert plugins.fingerprint[-1] == ("sglang-mine", "sglang-mine", "7.7")
    assert {distribution for _, distribution, _ in plugins.fingerprint[:-1]} == {"sglang-plug"}
    assert plugins.fingerprint == discover().fingerprint != discover(block=("sglang-mine",)).fingerprint


def test_settings_reach_the_component_they_are_meant_for(install: Install) -> None:
    install("sglang-mine", WORKING)
    assert discover().get("eviction", "mine").settings().size == 3
    assert discover(settings={"mine": {"size": "9"}}).get("eviction", "mine").settings().size == 9
    with pytest.raises(ConfigError, match="eviction 'lru' from sglang-plug .* has no settings, but --set lru.size"):
        discover(settings={"lru": {"size": 1}}).get("eviction", "lru").settings()


@pytest.mark.parametrize("apart", [False, True])
def test_settings_pass_over_namesakes_without_any(install: Install, apart: bool) -> None:
    """Kernels and attention of one author often have the same name, in one plugin or in two."""
    schedule = """
    @hookimpl
    def register_schedule_policies():
        yield ScheduleSpec(name="mine", target=f"{__name__}:Mine")
    """
    install("sglang-mine", WORKING if apart else WORKING + schedule)
    if apart:
        install("sglang-other", schedule)
    plugins = discover(settings={"mine": {"size": 9}})
    assert plugins.get("eviction", "mine").settings().size == 9
    assert plugins.get("schedule", "mine").settings() is None


class TestChoice:
    SOURCE = """
        @hookimpl
        def choose_component(kind, facts):
            return "{name}" if kind == "eviction" and facts.device == "npu" else None
    """

    def test_ours_answers_where_nobody_else_does(self) -> None:
        assert discover().resolve("eviction", "auto", Facts()).spec.name == "lru"

    def test_a_third_party_plugin_is_called_before_the_built_in_ones_and_may_pass(self, install: Install) -> None:
        install("sglang-chooser", self.SOURCE.format(name="lfu"))
        plugins = discover()
        assert plugins.resolve("eviction", "auto", Facts(device="npu")).spec.name == "lfu"
        assert plugins.resolve("eviction", "auto", Facts(device="cpu")).spec.name == "lru"
        assert plugins.resolve("eviction", "fifo", Facts(device="npu")).spec.name == "fifo"

    def test_installed_plugins_are_asked_by_name_and_disagreement_is_reported(
        self, install: Install, caplog: pytest.LogCaptureFixture
    ) -> None:
        install("sglang-b", self.SOURCE.format(name="fifo"))
        install("sglang-a", self.SOURCE.format(name="lfu"))
        plugins = discover()
        assert plugins.choose("eviction", Facts(device="npu")) == "lfu"
        assert [record.getMessage() for record in caplog.records] == [
            "plugins disagree about the eviction for 'auto': sglang-a:sglang-a is called first and chooses 'lfu', "
            "sglang-b:sglang-b would choose 'fifo'; name one to settle it"
        ]
        assert [name for name in plugins.choosing_plugins() if not name.startswith("sglang-plug:")] == [
            "sglang-a:sglang-a",
            "sglang-b:sglang-b",
        ]

    def test_plugins_that_agree_are_not_reported(self, install: Install, caplog: pytest.LogCaptureFixture) -> None:
        install("sglang-a", self.SOURCE.format(name="lfu"))
        install("sglang-b", self.SOURCE.format(name="lfu"))
        assert discover().choose("eviction", Facts(device="npu")) == "lfu"
        assert discover().choose("eviction", Facts(device="cpu")) == "lru"
        assert not caplog.records

    def test_files_come_before_installed_plugins_and_the_last_named_one_first(
        self, install: Install, tmp_path: Path
    ) -> None:
        install("sglang-a", self.SOURCE.format(name="lfu"))
        files = [tmp_path / f"{name}.py" for name in ("one", "two")]
        for file, name in zip(files, ("fifo", "priority"), strict=True):
            file.write_text("from sglang_plug import hookimpl\n" + dedent(self.SOURCE.format(name=name)))
        plugins = discover(files=tuple(map(str, files)))
        assert [choice.name for choice in plugins.component_choices("eviction", Facts(device="npu"))] == [
            "priority",
            "fifo",
            "lfu",
        ]

    def test_marks_of_hooks_come_before_the_order_of_names(self, install: Install) -> None:
        install("sglang-a", self.SOURCE.format(name="lfu").replace("@hookimpl", "@hookimpl(trylast=True)"))
        install("sglang-b", self.SOURCE.format(name="fifo"))
        install("sglang-c", self.SOURCE.format(name="priority").replace("@hookimpl", "@hookimpl(tryfirst=True)"))
        answers = discover().component_choices("eviction", Facts(device="npu"))
        assert [answer.name for answer in answers] == ["priority", "fifo", "lfu"]

    def test_a_plugin_that_fails_after_the_first_answer_is_only_logged(
        self, install: Install, caplog: pytest.LogCaptureFixture
    ) -> None:
        install("sglang-a", self.SOURCE.format(name="lfu"))
        install("sglang-b", "@hookimpl\ndef choose_component(kind, facts):\n    1 / 0")
        assert discover().choose("eviction", Facts(device="npu")) == "lfu"
        assert "plugin 'sglang-b:sglang-b' failed to choose a eviction: ZeroDivisionError" in caplog.text
        with pytest.raises(PluginError, match="sglang-b' failed to choose a schedule"):
            discover().choose("schedule", Facts())

    def test_what_suits_a_model_is_its_own_unless_somebody_chooses(self, install: Install) -> None:
        source = """
            from sglang_plug import MediaProcessorSpec

            @hookimpl
            def register_media_processors():
                return [
                    MediaProcessorSpec(name=name, target="a.b:c", architectures=frozenset(given))
                    for name, given in (("aaa-fancy", ["Fancy"]), ("aab-plain", ["Plain"]), ("aac-any", []))
                ]

            @hookimpl
            def choose_component(kind, facts):
                return "aac-any" if kind == "media-processor" and facts.device == "npu" else None
        """
        install("sglang-fancy", source)
        plugins = discover()
        fancy, nobody = (SimpleNamespace(architectures=[name]) for name in ("Fancy", "Other"))
        assert plugins.resolve("media-processor", "auto", Facts(model=fancy)).spec.name == "aaa-fancy"
        assert plugins.choose("media-processor", Facts(model=nobody)) is None
        assert plugins.resolve("media-processor", "auto", Facts(model=fancy, device="npu")).spec.name == "aac-any"

    def test_nobody_answering_lists_the_names(self) -> None:
        with pytest.raises(PluginError, match="no plugin chose a flavour for 'auto'; name one of: none is declared"):
            discover().resolve("flavour", "auto", Facts())


class TestConfigure:
    SOURCE = """
        @hookimpl
        def configure(config):
            if config.cache.page_size > 1:
                raise ConfigError("pages of one token only")
    """

    def test_a_refusal_names_the_plugin(self, install: Install) -> None:
        install("sglang-picky", self.SOURCE)
        plugins = discover()
        plugins.configure(EngineConfig())
        with pytest.raises(ConfigError, match="sglang-picky.* refuses the configuration: pages of one token only"):
            plugins.configure(EngineConfig(cache=CacheOptions(page_size=16)))

    def test_a_hook_without_arguments_is_called_without_any(self, install: Install) -> None:
        install("sglang-silent", "@hookimpl\ndef configure():\n    raise ConfigError('never')")
        with pytest.raises(ConfigError, match="never"):
            discover().configure(EngineConfig())


def test_nothing_installed_asks_whether_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_plug.plugins.installed.discovery.importlib.metadata.distributions", lambda: iter(()))
    with pytest.raises(PluginError, match="no plugins found; is sglang-plug installed?"):
        discover()
