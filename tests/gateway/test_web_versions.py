"""What a page loads: at an address that names its content, as one, without comments."""

import re
from pathlib import Path

import pytest
from tests.support.gateways import running_gateway
from tools.pages import make

YEAR = "public, max-age=31536000, immutable"


@pytest.fixture(autouse=True)
def looked_at_each_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("parley.gateway.http.files.LOOK_S", 0.0)


async def test_pages_have_one_frame(tmp_path: Path):
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


async def test_files_of_a_page_are_kept_for_as_long_as_they_stay_the_same(tmp_path: Path):
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
