"""What a page loads: at an address that names its content, as one, without comments."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.gateways import running_gateway

from parley.gateway.http.files import WebFiles, without_comments

ROOT = Path(__file__).parents[2]
WEB = ROOT / "src/parley/web"
YEAR = "public, max-age=31536000, immutable"


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebFiles, "look_s", 0.0)


async def test_pages_have_one_frame(tmp_path: Path):
    (tmp_path / "frame.html").write_text("<!doctype html>\n<head>\n<!-- page -->\n</head>\n")
    (tmp_path / "index.html").write_text("<title>Home</title>\n")
    (tmp_path / "privacy.html").write_text("<!doctype html>\n<title>Its own</title>\n")
    async with running_gateway(web=tmp_path) as gateway, gateway.http() as http:
        home = await http.get("/")
        privacy = await http.get("/privacy")
        (tmp_path / "frame.html").write_text("<!doctype html>\n<body>\n<!-- page -->\n</body>\n")
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
    async with (
        running_gateway(web=tmp_path) as gateway,
        gateway.http() as http,
    ):
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


def test_a_script_without_its_comments_is_the_same_program():
    node = shutil.which("node")
    if node is None or not (ROOT / "node_modules/typescript").is_dir():
        pytest.skip("npm's tools are not installed (npm ci)")
    pairs = {
        str(path.relative_to(WEB)): [path.read_text(), without_comments(path.read_text())]
        for path in WEB.rglob("*.js")
    }
    compare = """
    const ts = require('typescript');
    const printer = ts.createPrinter({ removeComments: true });
    const read = (text) => ts.createSourceFile('a.js', text, ts.ScriptTarget.ESNext);
    const made = (text) => printer.printFile(read(text)).replace(/^\\s*\\n/gm, '');
    const pairs = JSON.parse(require('fs').readFileSync(0, 'utf8'));
    const isOther = ([, [one, other]]) => made(one) !== made(other);
    const other = Object.entries(pairs).filter(isOther).map(([name]) => name);
    console.log(JSON.stringify(other));
    """

    done = subprocess.run(
        [node, "-e", compare], input=json.dumps(pairs), cwd=ROOT, capture_output=True, text=True
    )

    assert json.loads(done.stdout) == [], done.stderr
    assert sum(len(less) for _, less in pairs.values()) < 0.85 * sum(
        len(text) for text, _ in pairs.values()
    )
