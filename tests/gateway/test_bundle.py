"""The scripts of a page as one file: the same program, with one copy of each module."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from parley.gateway.http.bundle import CannotBundle, bundle, largest_later
from parley.gateway.http.files import WebFiles
from parley.gateway.http.pages import PAGES

WEB = Path(__file__).parents[2] / "src/parley/web"
NODE = shutil.which("node")

PARTS = {
    "words/words.js": """
        const text = await Promise.resolve('hello');
        let told = 0;
        export const tell = () => `${text} ${++told}`;
        export class Teller { tell() { return tell(); } }
    """,
    "elements/dom.js": """
        import { tell as say } from '../words/words.js';
        export function $(name) { return `${name}: ${say()}`; }
        export const where = import.meta.url;
    """,
    "elements/both.js": "export { $, where } from './dom.js';\nexport const one = 1;",
    "pages/late.js": """
        import { $ } from '../elements/dom.js';
        import { tell } from '../words/words.js';
        export const late = () => [$('late'), tell()].join();
    """,
    "pages/home.js": """
        import {
          Teller,
          tell,
        } from '../words/words.js';
        import { $, where as place, one } from '../elements/both.js';
        import './effect.js';
        const name = 'mine';
        console.log($(name), tell(), new Teller().tell(), one, place.endsWith('/elements/dom.js'));
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
        "import { tell } from '../words/words.js';\nlet parts = 0;\n"
        "export const part = () => `part ${++parts} ${tell()}`;\n"
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


@pytest.mark.parametrize("file", sorted({name for name, _ in PAGES.values()} | {"replay.html"}))
def test_every_page_of_ours_is_one_script_and_one_style_sheet(file: str):
    made = WebFiles(WEB)._made_for(Path(file).stem)
    script = next(name for name in made if name.startswith("pages/"))

    assert len(made) > 5
    assert len(made["page.css"]) > 1000
    assert b"export {" in made[script]


def test_what_runs_beside_a_page_gets_no_stub_of_it(web: Path):
    (web / "pages/sound-worklet.js").write_text("import { tell } from '../words/words.js';\n")
    (web / "index.html").write_text('<script type="module" src="/static/pages/home.js"></script>')

    made = WebFiles(web)._made_for("index")

    assert "elements/dom.js" in made
    assert "words/words.js" not in made
