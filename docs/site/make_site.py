"""The documentation as a site: `python docs/site/make_site.py [FOLDER]` writes build/site, without a network.

The pages stay as they are for a reader of the repository. The site has copies of them, and of the files
outside of docs/ that they link to. Its tabs are the sections of docs/index.md, with their groups. The
reference of the Python API is made from docstrings. Every page is there as plain Markdown beside its HTML;
llms.txt lists them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import api_page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HERE = DOCS / "site"
INDEX = DOCS / "index.md"
#: Where a page of the repository stands on the site, if not under its own name below `repository/`.
PLACES = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "examples/README.md": "examples.md",
}

_SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_GROUP = re.compile(r"^### ([^\n]+)\n(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)#]+)\)(?:: (.*))?$", re.MULTILINE)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
#: What a browser would load from elsewhere.
_FOREIGN = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^\"'\s>]+", re.IGNORECASE
)


#: Widths at which the theme's menu hides, and ours: it stands beside the page from 1,200 pixels on.
_WIDTHS = {"76.25em": "75em", "76.234375em": "74.984375em"}
_CELL = re.compile(r"<td\b.*?</td>", re.DOTALL)
_CODE = re.compile(r"<code>[^<]*</code>")


class Problem(Exception):
    """The site would not be whole."""


def sections() -> dict[str, list[tuple[str, str, str]]]:
    """Return the tabs in their order, each with title, page and sentence of its pages."""
    return {title: _ENTRY.findall(body) for title, body in _SECTION.findall(INDEX.read_text("utf-8"))}


def place_of(path: Path) -> str | None:
    """Return where a file of the repository stands on the site; None for a folder."""
    if path.is_dir():
        return None
    name = path.relative_to(ROOT).as_posix()
    if name in PLACES:
        return PLACES[name]
    if DOCS in path.parents:
        return path.relative_to(DOCS).as_posix()
    # Shown by a browser, not saved or run.
    return f"repository/{name}.txt"


class Stage:
    """The copies that the generator reads.

    Args:
        folder: for them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done: set[Path] = set()

    def take(self, path: Path) -> None:
        """Copy a file, and whatever its links lead to, each once."""
        place = place_of(path)
        if place is None or path in self._done:
            return
        if not path.exists():
            raise Problem(f"{path.relative_to(ROOT)} does not exist")
        self._done.add(path)
        target = self._folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copy(path, target)
            return
        parts = _FENCE.split(path.read_text(encoding="utf-8"))
        parts[::2] = [_LINK.sub(lambda link: self._led(link, path, place), part) for part in parts[::2]]
        target.write_text("".join(parts), encoding="utf-8")

    def _led(self, link: re.Match[str], page: Path, place: str) -> str:
        """Return a link as it must be on the site; a link to a folder becomes its text."""
        mark, text, target = link.groups()
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        name, hash_, anchor = target.partition("#")
        path = (page.parent / name).resolve()
        there = place_of(path)
        if there is None:
            return text
        self.take(path)
        return f"{mark}[{text}]({'../' * place.count('/')}{there}{hash_}{anchor})"


def build(folder: Path) -> None:
    """Write the site to a folder, in the place of what was there.

    Raises:
        Problem: a link leads nowhere, the index lacks a page, or a browser would load from another host.
    """
    with tempfile.TemporaryDirectory() as work:
        pages = Path(work, "pages")
        stage = Stage(pages)
        for path in sorted(DOCS.rglob("*.md")):
            stage.take(path)
        _shorten_home(pages / "index.md")
        shutil.copy(HERE / "site.css", pages)
        (pages / "api.md").write_text(api_page.page(), encoding="utf-8")
        Path(work, "zensical.toml").write_text(_configuration(), encoding="utf-8")
        _generate(work)
        for asset in Path(work, "site", "assets").rglob("*.[cj]s*"):
            _let_menu_stand(asset)
        for page in Path(work, "site").rglob("*.html"):
            page.write_text(_breakable(page.read_text("utf-8")), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(Path(work, "site"), folder)
        for page in pages.rglob("*.md"):
            shutil.copy(page, folder / page.relative_to(pages))
    (folder / "llms.txt").write_text(llms(), encoding="utf-8")
    check(folder)


def _shorten_home(page: Path) -> None:
    """Leave the list of pages out of the home page: the tabs are that list; a film stands in its place."""
    head = page.read_text("utf-8").partition("\n## ")[0]
    film = "![The demo: healthy tasks go on, nine kinds of poison end in quarantine](demo.svg)"
    page.write_text(f"{head}\n{film}\n", encoding="utf-8")


def _let_menu_stand(asset: Path) -> None:
    """Have a style sheet or a script of the theme ask for our width."""
    if asset.suffix in (".css", ".js"):
        text = asset.read_text("utf-8")
        for theirs, ours in _WIDTHS.items():
            text = text.replace(theirs, ours)
        asset.write_text(text, encoding="utf-8")


def _breakable(page: str) -> str:
    """Let code in the cells of tables break behind its marks, so that no narrow cell breaks its words."""

    def mark(cell: re.Match[str]) -> str:
        return _CODE.sub(lambda code: re.sub(r"(?<=[^<\W])([_./:=,-]+)(?=\w)", r"\1<wbr>", code[0]), cell[0])

    return _CELL.sub(mark, page)


def _configuration() -> str:
    tabs = ['{ "Home" = "index.md" }']
    for title, body in _SECTION.findall(INDEX.read_text("utf-8")):
        groups = [f'{{ "{group}" = [{_listed(part)}] }}' for group, part in _GROUP.findall(body)]
        api = ['{ "Python API" = "api.md" }'] if title == "Look up" else []
        tabs.append(f'{{ "{title}" = [{", ".join([*(groups or [_listed(body)]), *api])}] }}')
    where = f'docs_dir = "pages"\nsite_dir = "site"\nnav = [{", ".join(tabs)}]\n'
    return (HERE / "zensical.toml").read_text("utf-8").replace("[project]\n", f"[project]\n{where}", 1)


def _listed(part: str) -> str:
    return ", ".join(f'{{ "{name}" = "{_placed(page)}" }}' for name, page, _ in _ENTRY.findall(part))


def _placed(target: str) -> str:
    place = place_of((DOCS / target).resolve())
    assert place is not None, target
    return place


def _generate(work: str) -> None:
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", "zensical.toml"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        said = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)
        raise Problem(said.partition("Traceback")[0])


def llms() -> str:
    """Return the list of all pages for programs that read text: llms.txt."""
    title, _, rest = INDEX.read_text("utf-8").partition("\n\n")
    said = _LINK.sub(r"\2", rest.partition("\n\n")[0]).replace("\n", " ")
    lines = [title, "", f"> {said}"]
    for section, entries in sections().items():
        listed = [
            f"- [{name}]({_placed(page)})" + (f": {said}" if said else "") for name, page, said in entries
        ]
        if section == "Look up":
            listed.append("- [Python API](api.md): every public name, from its docstring.")
        lines += ["", f"## {section}", "", *listed]
    return "\n".join([*lines, ""])


def check(folder: Path) -> None:
    """Look for pages that no tab leads to, and for what a reader's browser would load from another host."""
    led = {_placed(page) for entries in sections().values() for _, page, _ in entries} | {
        "index.md",
        "api.md",
    }
    there = {page.relative_to(folder).as_posix() for page in folder.rglob("*.md")}
    if there != led:
        raise Problem(f"not in docs/index.md: {sorted(there - led)}; not there: {sorted(led - there)}")
    for page in folder.rglob("*.html"):
        foreign = _FOREIGN.findall(page.read_text(encoding="utf-8"))
        if foreign:
            raise Problem(f"{page.name} loads from another host: {foreign[0]}")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "site"
    try:
        build(target)
    except Problem as problem:
        sys.exit(str(problem))
    sys.stdout.write(f"{target}: {len([*target.rglob('*.html')])} pages\n")
