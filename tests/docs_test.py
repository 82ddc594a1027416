"""The documentation holds together: links lead somewhere, pages stay short, no page is lost."""
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.*)$", re.M)
CODE = re.compile(r"^```.*?^```", re.M | re.S)


def pages():
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("models/**/*.md"), *ROOT.glob("examples/**/*.md"),
             *ROOT.glob("tests/**/*.md")]
    return sorted(page.relative_to(ROOT).as_posix() for page in found)


def anchors(page):
    """As the usual renderers make them of headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
            for heading in HEADING.findall(CODE.sub("", page.read_text()))}


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page):
    file = ROOT / page
    for link in LINK.findall(CODE.sub("", file.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        assert target.exists(), f"{page} links to {link}, which is not there"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page} links to {link}; {path or page} has no such heading"


@pytest.mark.parametrize("page", [page for page in pages() if page.startswith("docs/")])
def test_pages_can_be_read_in_one_sitting(page):
    assert len((ROOT / page).read_text().splitlines()) <= 300


def test_every_page_can_be_reached_from_the_readme():
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen:
            continue
        seen.add(page)
        for link in LINK.findall(page.read_text()):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists():
                ahead.append(target)
    lost = {page for page in pages() if page.startswith("docs/")} - {page.relative_to(ROOT).as_posix() for page in seen
                                                                      if page.is_relative_to(ROOT)}
    assert not lost, f"no chain of links leads from README.md to {sorted(lost)}"
