"""String formats as regular expressions; every match is valid, but not every valid text matches."""

from __future__ import annotations

from collections.abc import Mapping

_YEAR = r"(?:0[1-9]\d\d|[1-9]\d{3})"
_DAYS = r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8])"
_DATE = rf"{_YEAR}-(?:{_DAYS})"
_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?"
_TIME = rf"{_CLOCK}(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,29}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_HOURS = r"T\d{1,4}(?:H(?:\d{1,4}M(?:\d{1,4}S)?)?|M(?:\d{1,4}S)?|S)"
_DURATION = rf"P(?:\d{{1,4}}W|(?:\d{{1,4}}Y)?\d{{1,3}}M(?:\d{{1,4}}D)?|\d{{1,4}}D(?:{_HOURS})?|{_HOURS})"

FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": rf"[A-Za-z0-9_+-]{{1,32}}(?:\.[A-Za-z0-9_+-]{{1,32}}){{0,2}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "ipv6": r"(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}",
    "uri": rf"https?://{_HOST}(?::[1-9]\d{{0,3}})?(?:/[A-Za-z0-9._~-]{{0,64}}){{0,8}}(?:\?[A-Za-z0-9._~=&-]{{0,128}})?",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
}

DEFINED_FORMATS = frozenset(
    [*FORMATS, "idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer"]
    + ["uri-reference", "uri-template"]
)
"""Formats that JSON Schema defines. Others are annotations: section 7.2.3 of its validation specification."""
