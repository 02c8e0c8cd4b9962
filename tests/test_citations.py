"""Code and tests cite the specification by file name and section; every citation resolves."""

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = {page.name: page.read_text() for page in (ROOT / "docs" / "spec").glob("*.md")}
CITED = re.compile(
    r"\b(service|sessions|model|speech|web|interop|pocket)\.md\b(?P<after>[^\n]{0,60})"
)
SECTION = r"\d{1,2}(?:\.\d{1,2})?"
SECTIONS = re.compile(
    rf"^[ ,]*(?:sections? )?({SECTION}(?:(?:, | and |-| to ){SECTION})*)(?![\d%])"
)


@functools.cache
def citations() -> list[tuple[str, str, str]]:
    found = []
    for folder, suffix in (("src", "*.py"), ("src", "*.js"), ("tests", "*.py"), ("tests", "*.mjs")):
        for path in (ROOT / folder).rglob(suffix):
            text = path.read_text()
            if path == Path(__file__) or ".md" not in text:
                continue
            # A citation may continue in the next comment or docstring line.
            text = re.sub(r"\n\s*(?:#|//|\*)? *", " ", text)
            for match in CITED.finditer(text):
                before = text[max(0, match.start() - 20) : match.start()]
                if before.endswith(("understand/", "do/", "protocols/", "log/")):
                    continue
                where = str(path.relative_to(ROOT))
                sections = SECTIONS.match(match["after"])
                found.append((where, match[1] + ".md", sections[1] if sections else ""))
    return found


def test_there_is_something_to_check():
    assert len(citations()) > 100
    assert {page for _, page, _ in citations()} <= PAGES.keys()


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_citation_leads_to_a_section(page):
    text = PAGES[page]
    headings = set(re.findall(r"^#+ (\d+(?:\.\d+)?)", text, re.MULTILINE))
    # "sections 4.7-29": row 29 of the table in 4.7.
    missing = [
        f"{where}: {page} {one}"
        for where, cited, sections in citations()
        if cited == page
        for one in re.findall(SECTION, re.sub(r"-\d+\b(?!\.)", "", sections))
        if one not in headings
    ]

    assert missing == []


def test_nothing_cites_a_text_that_is_not_here():
    gone = re.compile(
        r"(?i)duplex[ _]details|half-duplex API|(?:chat|half_duplex)_api\.txt"
        r"|realtime_video_protocol|Source: (?:requirement texts|realtime (?:video )?protocol)"
        r"|web client spec|service spec"
    )
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for folder, suffix in (("src", "*.py"), ("src", "*.js"))
        for path in (ROOT / folder).rglob(suffix)
        for match in gone.finditer(path.read_text())
    ]

    assert found == []


def test_the_specification_is_written_for_readers_of_the_product():
    marks = re.compile(r"\b(REC|PUB|UNCONFIRMED|FIX|REQ|REF)\b")
    assert {name for name, text in PAGES.items() if marks.search(text)} == set()
