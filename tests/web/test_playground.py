"""The programs that the playground shows are programs: none has a syntax error or a gap."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "src/parley/web"
NODE = shutil.which("node")
QUOTES = "Say \"yes\", or 'no'.\nBe brief."
"""Instructions that a careless program would end early."""

LIST = """
globalThis.location = { href: 'http://server:8006/', search: '' };
const { programs } = await import(`${process.argv[1]}/pages/playground/code.js`);
const { DIALECTS } = await import(`${process.argv[1]}/pages/playground/dialects.js`);
const [instructions, origin] = process.argv.slice(2);
const all = DIALECTS.flatMap((dialect) =>
  dialect.messages(instructions).flatMap(({ name, message }) =>
  programs(dialect, { origin, instructions, message: JSON.stringify(message, null, 2),
    hasOwnCertificate: origin.startsWith('https') })
    .map(({ id, text }) => ({ dialect: dialect.id, name, id, text }))));
console.log(JSON.stringify(all));
"""


@pytest.fixture(scope="module", params=["http://server:8006", "https://localhost:8006"])
def programs(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    if NODE is None:
        pytest.skip("Node.js is not installed")
    command = [NODE, "--input-type=module", "--no-warnings", "-e", LIST, str(WEB)]
    made = subprocess.run(
        [*command, QUOTES, request.param], capture_output=True, timeout=60, check=True
    )
    listed: list[dict[str, str]] = json.loads(made.stdout)
    return listed


def test_every_protocol_has_a_program_in_three_languages(programs: list[dict[str, str]]):
    languages: dict[str, set[str]] = {}
    for program in programs:
        languages.setdefault(program["dialect"], set()).add(program["id"])

    assert len(languages) == 7
    assert all(ids == {"python", "javascript", "shell"} for ids in languages.values())
    assert [each for each in programs if "undefined" in each["text"]] == []


def test_the_python_programs_compile(programs: list[dict[str, str]]):
    for program in programs:
        if program["id"] == "python":
            compile(program["text"], f"{program['dialect']}.py", "exec")


def test_the_javascript_and_shell_programs_parse(programs: list[dict[str, str]], tmp_path: Path):
    assert NODE is not None
    seen = {program["text"]: program for program in programs if program["id"] != "python"}
    for program in seen.values():
        is_shell = program["id"] == "shell"
        # A call in a page is HTML around a module.
        text = program["text"].partition('<script type="module">')[2].partition("</script>")[0]
        file = tmp_path / f"program.{'sh' if is_shell else 'mjs'}"
        file.write_text(program["text"] if is_shell else text or program["text"], encoding="utf-8")
        checker = ["sh", "-n"] if is_shell else [NODE, "--check"]
        done = subprocess.run([*checker, str(file)], capture_output=True, timeout=30, check=False)
        assert done.returncode == 0, (program["dialect"], program["text"], done.stderr.decode())
