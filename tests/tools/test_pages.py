"""The pages as they are served: the same programs, with one copy of each module."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tools.pages import (
    MADE,
    ROOT,
    SOURCE,
    CannotBundle,
    bundle,
    largest_later,
    make,
    without_comments,
)

from parley.gateway.http.errors import MISSING
from parley.gateway.http.pages import PAGES

NODE = shutil.which("node")

PARTS = {
    "words/words.js": """
        const text = await Promise.resolve('hello');
        let count = 0;
        export const greet = () => `${text} ${++count}`;
        export class Greeter { greet() { return greet(); } }
    """,
    "elements/dom.js": """
        import { greet as say } from '../words/words.js';
        export function $(name) { return `${name}: ${say()}`; }
        export const where = import.meta.url;
    """,
    "elements/both.js": "export { $, where } from './dom.js';\nexport const one = 1;",
    "pages/late.js": """
        import { $ } from '../elements/dom.js';
        import { greet } from '../words/words.js';
        export const late = () => [$('late'), greet()].join();
    """,
    "pages/home.js": """
        import {
          Greeter,
          greet,
        } from '../words/words.js';
        import { $, where as place, one } from '../elements/both.js';
        import './effect.js';
        const it = 'mine';
        console.log($(it), greet(), new Greeter().greet(), one, place.endsWith('/elements/dom.js'));
        void import('./late.js').then(({ late }) => console.log(late()));
    """,
    "pages/effect.js": "console.log('first');",
}


def read(path: Path) -> str:
    return path.read_text("utf-8")


@pytest.fixture
def web(tmp_path: Path) -> Path:
    folder = tmp_path / "plain"
    for name, text in PARTS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line.strip() for line in text.strip().splitlines()) + "\n")
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


def run(script: Path) -> str:
    if NODE is None:
        pytest.skip("Node.js is not installed")
    done = subprocess.run([NODE, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_bundle_with_its_stubs_is_the_same_program(web: Path, tmp_path: Path):
    whole = bundle(web, "pages/home.js", read, "../../plain/")
    page = tmp_path / "page"
    shutil.copytree(web, page)
    (page / "pages/home.js").write_text(whole.script)
    for name, stub in whole.stubs.items():
        (page / name).write_text(stub)

    together = run(page / "pages/home.js")

    assert together == run(web / "pages/home.js")
    # What comes later counts on: it has no second copy of what the page has.
    assert together == "first\nmine: hello 1 hello 2 hello 3 1 true\nlate: hello 4,hello 5\n"
    assert set(whole.stubs) == {
        "words/words.js",
        "elements/dom.js",
        "elements/both.js",
        "pages/effect.js",
    }


def test_what_is_loaded_later_is_one_script_that_uses_the_pages_modules(web: Path, tmp_path: Path):
    (web / "pages/part.js").write_text(
        "import { greet } from '../words/words.js';\nlet parts = 0;\n"
        "export const part = () => `part ${++parts} ${greet()}`;\n"
    )
    late = (web / "pages/late.js").read_text()
    (web / "pages/late.js").write_text(
        f"import {{ part }} from './part.js';\n{late}"
        "console.log(part(), import.meta.url.endsWith('/plain/pages/late.js'));\n"
        "void import('./last.js').then(({ last }) => console.log(last()));\n"
    )
    (web / "pages/last.js").write_text(
        "import { part } from './part.js';\nexport const last = () => part();\n"
    )
    page = bundle(web, "pages/home.js", read, "../../plain/")

    assert largest_later(web, page, read) == "pages/late.js"
    later = bundle(web, "pages/late.js", read, "../../plain/", page)

    assert set(later.stubs) == {"pages/part.js"}
    made = tmp_path / "page"
    shutil.copytree(web, made)
    for one in (page, later):
        (made / one.entry).write_text(one.script)
        for name, stub in one.stubs.items():
            (made / name).write_text(stub)
    together = run(made / "pages/home.js")
    assert together == run(web / "pages/home.js")
    assert together.endswith("part 1 hello 4 true\nlate: hello 5,hello 6\npart 2 hello 7\n")


def test_a_page_that_loads_single_files_later_has_no_second_script(web: Path):
    page = bundle(web, "pages/home.js", read, "../../plain/")

    assert largest_later(web, page, read) is None


@pytest.mark.parametrize(
    "line",
    [
        "export default 1;",
        "import * as all from './other.js';",
        "export * from './other.js';",
        "export { a as b } from './other.js';",
        "export let changing = 1;",
    ],
)
def test_an_unknown_form_is_refused_with_its_line(tmp_path: Path, line: str):
    (tmp_path / "other.js").write_text("export const a = 1;\n")
    (tmp_path / "entry.js").write_text(f"{line}\n")

    with pytest.raises(CannotBundle, match=re.escape(line.split(";")[0][:12])):
        bundle(tmp_path, "entry.js", read, "")


def test_a_circle_is_refused(tmp_path: Path):
    (tmp_path / "a.js").write_text("import './b.js';\n")
    (tmp_path / "b.js").write_text("import './a.js';\n")

    with pytest.raises(CannotBundle, match=r"a\.js"):
        bundle(tmp_path, "a.js", read, "")


@pytest.mark.parametrize("name", sorted({name for name, _ in PAGES.values()} | {MISSING, "replay"}))
def test_every_page_of_ours_is_one_script_and_one_style_sheet(name: str):
    html = (MADE / f"{name}.en.html").read_text()
    found = re.search(rf'src="/static/v-(\w+)\.{name}/(pages/[\w-]+\.js)"', html)
    own = MADE / "static" / "of" / name

    assert found
    assert found[1] == (MADE / "version").read_text()
    assert "export {" in (own / found[2]).read_text()
    assert (own / "page.css").stat().st_size > 1000
    assert html.count('<link rel="stylesheet"') == 1


def test_what_runs_next_to_a_page_gets_no_stub_of_it(web: Path, tmp_path: Path):
    (web / "pages/sound-worklet.js").write_text("import { greet } from '../words/words.js';\n")
    (web / "index.html").write_text('<script type="module" src="/static/pages/home.js"></script>')

    make(web, tmp_path / "made")

    own = tmp_path / "made" / "static" / "of" / "index"
    assert (own / "elements/dom.js").is_file()
    assert not (own / "words/words.js").exists()


def test_pages_are_made_again_only_after_a_change(web: Path, tmp_path: Path):
    made = tmp_path / "made"
    again = [make(web, made), make(web, made)]
    (web / "pages/late.js").unlink()
    (web / "pages/effect.js").write_text("console.log('changed');\n")

    assert [*again, make(web, made)] == [True, False, True]
    assert "changed" in (made / "static/pages/effect.js").read_text()
    assert not (made / "static/pages/late.js").exists()


def test_the_wheel_brings_the_made_pages_and_not_their_sources(tmp_path: Path):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())

    made = {f"parley/pages/{path.relative_to(MADE).as_posix()}" for path in MADE.rglob("*.*")}
    assert made <= names
    assert {"parley/pages/version", "parley/pages/static/client.js.gz"} <= names
    assert not any(name.startswith("parley/web/") for name in names)


def test_a_script_without_its_comments_is_the_same_program():
    node = shutil.which("node")
    if node is None or not (ROOT / "node_modules/typescript").is_dir():
        pytest.skip("npm's tools are not installed (npm ci)")
    pairs = {
        str(path.relative_to(SOURCE)): [path.read_text(), without_comments(path.read_text())]
        for path in SOURCE.rglob("*.js")
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
