from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pytest

from sglang_plug import Plugins
from sglang_plug.config import ConfigError, PluginOptions
from sglang_plug.plugins.settings import Setting, parse_settings, settings_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    size: int = 8
    ratio: float = 0.5
    eager: bool = False
    mode: Literal["fast", "small"] = "fast"
    name: str | None = None
    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError("size must be at least 1")


def parse(**values: Any) -> Any:
    return parse_settings(Knobs, values, "triton")


def test_nothing_given_is_the_defaults() -> None:
    assert parse() == Knobs()


def test_text_becomes_what_the_field_says() -> None:
    parsed = parse(size="16", ratio="0.25", eager="true", mode="small", name="x")
    assert parsed == Knobs(size=16, ratio=0.25, eager=True, mode="small", name="x")
    assert [type(parsed.size), type(parsed.ratio), type(parsed.eager)] == [int, float, bool]


def test_values_from_yaml_keep_their_types() -> None:
    assert parse(size=16, eager=True, layers=[1, 2], name=None) == Knobs(size=16, eager=True, layers=(1, 2))


def test_an_unknown_key_names_the_component_and_the_nearest_key() -> None:
    with pytest.raises(ConfigError, match="'triton' has no setting 'sise'; did you mean 'size'?"):
        parse(sise=1)


def test_an_unknown_key_like_no_other_lists_all() -> None:
    with pytest.raises(ConfigError, match="known: size, ratio, eager, mode, name, layers"):
        parse(zzz=1)


@pytest.mark.parametrize(
    ("values", "field"), [({"size": "big"}, "size"), ({"mode": "slow"}, "mode"), ({"eager": "perhaps"}, "eager")]
)
def test_a_value_of_another_type_names_the_component_and_the_key(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=rf"settings of 'triton': .*{field}"):
        parse(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": "abc"}, "settings of 'triton': size must be an integer, not text (--set triton.size=abc)"),
        ({"mode": "slow"}, "settings of 'triton': mode cannot be 'slow' (--set triton.mode=slow)"),
        ({"layers": [1, "x"]}, "settings of 'triton': layers[1] must be an integer, not text (--set triton.layers="),
    ],
)
def test_the_option_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**values)
    assert str(caught.value).startswith(message)


def test_a_refusal_by_the_dataclass_itself_is_attributed() -> None:
    with pytest.raises(ConfigError, match="settings of 'triton': .*at least 1"):
        parse(size=0)


def test_a_required_setting_that_is_missing_is_named() -> None:
    @dataclass
    class Needy:
        url: str

    with pytest.raises(ConfigError, match="settings of 'remote': .*url"):
        parse_settings(Needy, {}, "remote")


class Limits(msgspec.Struct, frozen=True, kw_only=True, rename={"keep_alive": "keep-alive"}):
    url: str
    retries: int = 3
    keep_alive: bool = True
    paths: list[str] = []


def test_a_struct_may_declare_settings() -> None:
    parsed = parse_settings(Limits, {"url": "x", "retries": "4", "keep-alive": "false"}, "remote")
    assert parsed == Limits(url="x", retries=4, keep_alive=False)
    with pytest.raises(ConfigError, match="'remote' has no setting 'retrys'; did you mean 'retries'?"):
        parse_settings(Limits, {"retrys": 1}, "remote")
    with pytest.raises(ConfigError, match="settings of 'remote': .*url"):
        parse_settings(Limits, {}, "remote")


def test_fields_have_the_names_that_are_set() -> None:
    assert settings_fields(Limits) == [
        Setting("url", "str", None, True),
        Setting("retries", "int", 3, False),
        Setting("keep-alive", "bool", True, False),
        Setting("paths", "list[str]", [], False),
    ]
    assert settings_fields(Knobs)[3] == Setting("mode", "Literal['fast', 'small']", "fast", False)


def test_any_failure_of_the_class_itself_is_attributed() -> None:
    @dataclass
    class Failing:
        path: str = "x"

        def __post_init__(self) -> None:
            raise OSError("no such file")

    with pytest.raises(ConfigError, match="settings of 'remote': OSError: no such file"):
        parse_settings(Failing, {}, "remote")


SHARED = """
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class First:
        size: int = 1
        shared: int = 1

    @dataclass(frozen=True)
    class Second:
        ratio: float = 0.5
        shared: int = 1

    @hookimpl
    def register_kernels():
        yield KernelSpec(name="both", target=f"{__name__}:build", settings=f"{__name__}:First")

    @hookimpl
    def register_cache_policies():
        yield EvictionSpec(name="both", target=f"{__name__}:build", settings=f"{__name__}:Second")

    @hookimpl
    def register_schedule_policies():
        yield ScheduleSpec(name="both", target=f"{__name__}:build")

    def build(*arguments):
        return None
"""


def test_components_of_one_name_get_the_settings_that_they_know(install: Any) -> None:
    install("sglang-shared", SHARED)
    values = {"size": "2", "ratio": "0.25", "shared": "3"}
    plugins = Plugins.discover(PluginOptions(settings={"both": values}))
    plugins.check_settings()
    first, second = (plugins.get(kind, "both").settings() for kind in ("kernels", "eviction"))
    assert (first.size, first.shared) == (2, 3)
    assert (second.ratio, second.shared) == (0.25, 3)
    assert plugins.get("schedule", "both").settings() is None


def test_a_setting_that_no_component_of_the_name_knows_is_refused(install: Any) -> None:
    install("sglang-shared", SHARED)
    plugins = Plugins.discover(PluginOptions(settings={"both": {"size": "2", "width": "1"}}))
    with pytest.raises(ConfigError, match="'both' has no setting 'width'"):
        plugins.check_settings()
