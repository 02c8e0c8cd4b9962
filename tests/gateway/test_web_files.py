"""Pages and their files: packed for browsers that take it, on every address of theirs, which may
name their content."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.datastructures import Headers
from tests.support.cpu_time import takes_less_than
from tests.support.gateways import running_gateway
from tools.pages import MADE, make

from parley.gateway.http.files import DEPTH_LIMIT, WebFiles, takes_gzip
from parley.gateway.http.pages import OTHER_NAMES

SCRIPT = "export const words = 'the same line again and again';\n" * 40


@pytest.fixture
def web(tmp_path: Path) -> Path:
    """Made pages."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "index.html").write_text("<!doctype html>" + "<p>start</p>" * 100)
    (source / "duplex.html").write_text("<!doctype html>" + "<p>call</p>" * 100)
    (source / "big.js").write_text(SCRIPT)
    (source / "small.js").write_text("export {};")
    make(source, tmp_path / "made")
    return tmp_path / "made"


@pytest.fixture
async def http(web: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with running_gateway(web=web) as running, running.http() as client:
        yield client


async def test_text_travels_packed_to_browsers_that_take_it(http: httpx.AsyncClient):
    packed = await http.get("/static/big.js", headers={"accept-encoding": "br, gzip"})
    plain = await http.get("/static/big.js", headers={"accept-encoding": "identity"})
    head = await http.head("/static/big.js", headers={"accept-encoding": "gzip"})
    small = await http.get("/static/small.js", headers={"accept-encoding": "gzip"})
    page = await http.get("/", headers={"accept-encoding": "gzip"})

    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(SCRIPT) / 5
    assert packed.text == plain.text == SCRIPT
    assert "content-encoding" not in plain.headers
    assert {packed.headers["vary"], plain.headers["vary"]} == {"accept-encoding"}
    assert packed.headers["etag"] != plain.headers["etag"]
    assert packed.headers["content-type"].startswith("text/javascript")
    assert packed.headers["cache-control"] == "no-cache"
    assert head.headers["content-length"] == packed.headers["content-length"]
    assert head.content == b""
    assert small.text == "export {};"
    assert "content-encoding" not in small.headers
    assert page.headers["content-encoding"] == "gzip"
    assert "default-src 'self'" in page.headers["content-security-policy"]


async def test_head_is_answered_wherever_get_is(http: httpx.AsyncClient):
    for path in ("/", "/health", "/docs", "/metrics", "/v1/models", "/nothing"):
        asked, head = await http.get(path), await http.head(path)

        assert (head.status_code, head.content) == (asked.status_code, b""), path
        assert head.headers["content-type"] == asked.headers["content-type"], path


async def test_an_unchanged_file_is_not_sent_again_in_either_form(
    web: Path, http: httpx.AsyncClient
):
    answers = []
    for encoding in ("gzip", "identity"):
        ask = {"accept-encoding": encoding}
        first = await http.get("/static/big.js", headers=ask)
        again = {**ask, "if-none-match": first.headers["etag"]}
        answers.append(await http.get("/static/big.js", headers=again))
    source = web.with_name("source")
    (source / "big.js").write_text("export const changed = 1;\n" * 40)
    make(source, web)
    changed = await http.get("/static/big.js", headers={"accept-encoding": "gzip", **again})

    assert [answer.status_code for answer in answers] == [304, 304]
    assert all(answer.headers["vary"] == "accept-encoding" for answer in answers)
    assert changed.status_code == 200
    assert changed.text.startswith("export const changed")


async def test_phones_find_the_same_pages_at_their_own_addresses(http: httpx.AsyncClient):
    home, call = await http.get("/mobile/"), await http.get("/mobile-omni/")
    bare = await http.get("/mobile-omni")
    await http.put("/api/admin/apps/omni", json={"enabled": False})
    switched_off = await http.get("/mobile-omni/")

    assert "start" in home.text
    assert "call" in call.text
    assert bare.status_code in (302, 307)
    # Relative, so that a browser stays below the path at which a proxy serves all this.
    assert bare.headers["location"] == "mobile-omni/"
    assert (switched_off.status_code, switched_off.headers["location"]) == (302, "../")


async def test_a_person_on_a_wrong_link_reads_words_and_a_program_json(http: httpx.AsyncClient):
    reader = {"accept": "text/html,*/*"}
    page = await http.get("/nonsense", headers=reader)
    program = await http.get("/nonsense")
    data = await http.get("/api/nonsense", headers=reader)

    assert page.status_code == program.status_code == data.status_code == 404
    assert "There is no such page." in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert program.json()["code"] == data.json()["code"] == "not_found"


async def test_a_wrong_address_shows_a_page_of_ours_below_any_path(gateway):
    async with gateway.http() as http:
        page = await http.get("/a/b", headers={"accept": "text/html"})

    assert page.status_code == 404
    assert "../static/v-" in page.text
    assert "pages/missing.js" in page.text


@pytest.mark.parametrize(("asked", "there"), sorted(OTHER_NAMES.items()))
async def test_addresses_that_people_try_lead_to_the_page_they_mean(
    http: httpx.AsyncClient, asked: str, there: str
):
    answer = await http.get(f"{asked}?lang=en", follow_redirects=False)

    assert (answer.status_code, answer.headers["location"]) == (307, f"{there}?lang=en")


async def test_pages_of_allowed_origins_may_read_the_client_and_others_may_not(web: Path):
    friend, stranger = "https://friend.example", "https://stranger.example"
    security = {"allowed_origins": friend}
    async with running_gateway(web=web, security=security) as gateway, gateway.http() as http:
        answers = {
            origin: await http.get("/static/big.js", headers={"origin": origin})
            for origin in (friend, stranger)
        }
        data = await http.get("/status", headers={"origin": friend})
        models = await http.get("/v1/models", headers={"origin": friend})
        # As a browser asks before it sends a key.
        asks = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,x-stainless-os",
        }
        may, may_not, not_there = [
            await http.options(path, headers={"origin": origin, **asks})
            for origin, path in (
                (friend, "/v1/responses"),
                (stranger, "/v1/responses"),
                (friend, "/api/chat"),
            )
        ]

    assert answers[friend].headers["access-control-allow-origin"] == friend
    assert "origin" in answers[friend].headers["vary"]
    assert "access-control-allow-origin" not in answers[stranger].headers
    assert "access-control-allow-origin" not in data.headers
    assert models.headers["access-control-allow-origin"] == friend
    assert (may.status_code, may.headers["access-control-allow-origin"]) == (204, friend)
    assert may.headers["access-control-allow-methods"] == "POST"
    assert may.headers["access-control-allow-headers"] == asks["access-control-request-headers"]
    assert [each.status_code for each in (may_not, not_there)] == [403, 405]
    # For the developer of the page, whose browser shows it next to "CORS error".
    assert f"Pages from {stranger}" in may_not.json()["error"]["message"]
    assert "security.allowed_origins" in may_not.json()["error"]["message"]
    assert not any("access-control-allow-origin" in e.headers for e in (may_not, not_there))


def test_only_who_takes_gzip_gets_it():
    asked = {
        "gzip": True,
        "br, GZIP;q=0.5": True,
        "*": True,
        "": False,
        "br": False,
        "gzip;q=0": False,
    }

    assert {text: takes_gzip(Headers({"accept-encoding": text})) for text in asked} == asked


def test_a_page_is_finished_once_and_then_costs_a_look_up():
    files = WebFiles(MADE)
    headers = [(b"accept-encoding", b"gzip"), (b"accept-language", b"en")]
    scope = {"type": "http", "path": "/", "headers": headers}
    first = files.page("index", scope)
    again = [files.page("index", scope).body for _ in range(100)]

    assert set(again) == {first.body}
    assert files._finished.cache_info().misses == 1
    assert takes_less_than(0.001, lambda: files.page("index", scope))


def test_addresses_without_end_do_not_fill_the_memory():
    files = WebFiles(MADE)
    for depth in range(1, 200):
        scope = {"type": "http", "path": "/" + "a/" * depth, "headers": []}
        files.page("index", scope, 404)

    assert files._finished.cache_info().currsize <= DEPTH_LIMIT + 1


YEAR = "public, max-age=31536000, immutable"


async def test_pages_have_one_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("parley.gateway.http.files.LOOK_S", 0.0)
    (tmp_path / "frame.html").write_text("<!doctype html>\n<head>\n<!-- page -->\n</head>\n")
    (tmp_path / "index.html").write_text("<title>Home</title>\n")
    (tmp_path / "privacy.html").write_text("<!doctype html>\n<title>Its own</title>\n")
    made = tmp_path.with_name("made")
    make(tmp_path, made)
    async with running_gateway(web=made) as gateway, gateway.http() as http:
        home = await http.get("/")
        privacy = await http.get("/privacy")
        (tmp_path / "frame.html").write_text("<!doctype html>\n<body>\n<!-- page -->\n</body>\n")
        make(tmp_path, made)
        later = await http.get("/", headers={"if-none-match": home.headers["etag"]})

    assert home.text == "<!doctype html>\n<head>\n<title>Home</title>\n</head>\n"
    assert privacy.text == "<!doctype html>\n<title>Its own</title>\n"
    assert (later.status_code, later.text.split("\n")[1]) == (200, "<body>")


async def test_files_of_a_page_are_kept_for_as_long_as_they_stay_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("parley.gateway.http.files.LOOK_S", 0.0)
    (tmp_path / "pages").mkdir()
    script = tmp_path / "pages" / "home.js"
    script.write_text("import './other.js';\n")
    (tmp_path / "pages" / "other.js").write_text("export const other = 1;\n")
    (tmp_path / "index.html").write_text(
        '<head><link rel="stylesheet" href="/static/a.css">\n'
        '<link rel="stylesheet" href="/static/b.css">\n'
        '<script type="module" src="/static/pages/home.js"></script></head>'
    )
    (tmp_path / "a.css").write_text("a { top: 0; }\n")
    (tmp_path / "b.css").write_text("b { top: 0; }\n")
    (tmp_path / "words").mkdir()
    for name in ("en", "zh"):
        (tmp_path / "words" / f"{name}.js").write_text("export const words = {};\n")
    made = tmp_path.with_name("made")
    make(tmp_path, made)
    async with running_gateway(web=made) as gateway, gateway.http() as http:
        page = await http.get("/")
        address = re.search(r'src="(static/v-[0-9a-f]{16}\.index/pages/home\.js)"', page.text)
        assert address
        kept = await http.get(f"/{address[1]}")
        style = await http.get(f"/{address[1].replace('pages/home.js', 'page.css')}")
        stub = await http.get(f"/{address[1].replace('home.js', 'other.js')}")
        plain = await http.get(f"/{address[1].replace('.index', '')}")
        unnamed = await http.get("/static/pages/home.js")
        strange = await http.get("/static/v-0000000000000000.index/pages/home.js")
        script.write_text("import './other.js';\nexport const more = 1;\n")
        make(tmp_path, made)
        later = await http.get("/")
        chinese = await http.get("/", headers={"accept-language": "zh-CN,en;q=0.5"})
        phone = await http.get("/mobile/")

    assert kept.headers["cache-control"] == YEAR
    assert unnamed.headers["cache-control"] == strange.headers["cache-control"] == "no-cache"
    assert page.headers["cache-control"] == "no-cache"
    assert kept.text == strange.text
    assert address[1] not in later.text, "another content, another address"
    assert plain.text == "import './other.js';\n"
    assert "from './home.js'" in stub.text
    assert style.text == "a { top: 0; }\nb { top: 0; }\n"
    assert style.headers["content-type"].startswith("text/css")
    assert page.text.count('<link rel="stylesheet"') == 1
    assert re.search(r'modulepreload" href="static/v-\w+\.index/words/en\.js"', page.text)
    assert re.search(r'modulepreload" href="static/v-\w+\.index/words/zh\.js"', chinese.text)
    assert "accept-language" in page.headers["vary"]
    # Relative to the page's own address: below a proxy's path they are the same files.
    assert 'src="../static/v-' in phone.text
    assert '"/static/' not in phone.text + page.text
