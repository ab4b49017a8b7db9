"""Tests of the files that the server sends to browsers, without a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

import pytest

from sglang_plug_api.playground.pages import static_files

PAGES = ("/", "/docs", "/playground/operations")
REFERENCE = re.compile(r"""(?:src|href)="([^"#]+)"|from "(\./[^"]+)";""")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_runs_its_own_scripts_only(app: Any, path: str) -> None:
    answer = app.get(path)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=", answer.text), "nothing is inline"
    assert app.run(app.client.head(path)).text == ""


@pytest.mark.parametrize("path", PAGES)
def test_everything_that_a_page_names_is_served_from_relative_addresses(app: Any, path: str) -> None:
    names = [name for name, _ in REFERENCE.findall(app.get(path).text)]
    assert len(names) > 4 and not any(name.startswith(("/", "http")) for name in names)
    for name in names:
        assert app.get(urljoin(path, name)).status_code == 200, name


@pytest.mark.parametrize("path", PAGES)
def test_a_page_names_no_other_host(app: Any, path: str) -> None:
    assert not re.search(r"(https?:)?//[\w-]+\.\w", app.get(path).text)


def test_scripts_import_only_scripts_that_exist_and_name_no_host() -> None:
    files = static_files()
    for name, file in files.items():
        text = file.content.decode()
        for _, imported in REFERENCE.findall(text) if name.endswith(".js") else ():
            assert imported.removeprefix("./") in files, f"{name} imports {imported}"
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), f"{name} names a host"
        assert len(text.splitlines()) < 400, f"{name} is long"


def test_an_unchanged_file_is_not_sent_again(app: Any) -> None:
    first = app.get("/playground/style.css")
    assert first.headers["cache-control"] == "no-cache"
    again = app.get("/playground/style.css", headers={"if-none-match": f'"other", {first.headers["etag"]}'})
    assert (again.status_code, again.text) == (304, "")


@pytest.mark.parametrize("name", ["absent.js", "index.html", "%2e%2e%2fpages.py", "__init__.py"])
def test_no_other_file_is_served(app: Any, name: str) -> None:
    assert app.get(f"/playground/{name}").status_code == 404


def test_pages_need_no_key_and_what_they_show_does(apps: Callable[..., Any]) -> None:
    app = apps(api_key="user", admin_api_key="admin")
    assert {app.get(path).status_code for path in (*PAGES, "/playground/main.js")} == {200}
    assert app.get("/openapi.json").status_code == 401
    user, admin = ({"authorization": f"Bearer {key}"} for key in ("user", "admin"))
    assert app.get("/model_info").status_code == app.get("/activity").status_code == 401
    assert app.get("/activity", headers=user).status_code == 401, "other callers' requests are the admin's business"
    assert app.get("/activity", headers=admin).status_code == 200
