"""MkDocs hooks: the API reference, and copies of documents and pictures outside docs/."""

import ast
import inspect
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.structure.files import File

import simspec

ROOT = Path(__file__).parent.parent
COPIES = {
    "README.md": "index.md",
    "NOTATION.md": "notation.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "traces/README.md": "bundled_recordings.md",
    "real/tiny/README.md": "embedded_models.md",
}
"""Path in the repository -> page of the site."""

PICTURES = {
    f"traces/{name}": f"pictures/{name}"
    for name in ("coder/speedups.png", "smollm2/engines.png", "smollm2/speedups.png")
}
"""Picture in the repository -> file of the site."""

CODE = re.compile(r"<!-- code: (\w+\.py) -->")
LINK = re.compile(r"(!?)\[([^\]\n]+)\]\(([^)\s]+)\)")


def on_files(files, config):
    """Adds the copied documents and one reference page for each module."""
    for source, page in COPIES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=relink(text, source)))
    for source, picture in PICTURES.items():
        files.append(File.generated(config, picture, abs_src_path=str(ROOT / source)))
    for page, text in reference().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Programs are whole; links that lead out of docs/ lead to the copied pages."""
    if page.file.generated_by:
        return markdown
    markdown = CODE.sub(lambda found: program(found[1]), markdown)
    return relink(markdown, posixpath.join("docs", page.file.src_uri))


def program(name: str) -> str:
    """A fenced block of the program docs/NAME."""
    return f"```python\n{(ROOT / 'docs' / name).read_text(encoding='utf-8')}```"


def relink(text: str, source: str) -> str:
    """The Markdown of the repository's file `source` with its relative links as the site has them.

    A link to a file that is not on the site becomes its plain text.
    """

    def replace(match):
        image, label, address = match.groups()
        path, _, anchor = address.partition("#")
        if not path or ":" in path:
            return match[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        page = (COPIES | PICTURES).get(place) or (
            place.removeprefix("docs/") if re.fullmatch(r"docs/.*\.md", place) else ""
        )
        if not page:
            return label
        return f"{image}[{label}]({page}{'#' + anchor if anchor else ''})"

    return LINK.sub(replace, text)


def modules(root: Path) -> dict[str, list[str]]:
    """Package -> dotted names of its modules."""
    return {
        package: sorted(
            ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            for path in (root / package).rglob("*.py")
            if path.name != "__main__.py"
        )
        for package in ("simspec", "real")
    }


def summary(root: Path, name: str) -> str:
    """First line of a module's docstring."""
    path = root / name.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]


def exported() -> Iterator[str]:
    """A row a name of `simspec.__all__`: its link, and the first sentence about it."""
    for name in simspec.__all__:
        value, page = getattr(simspec, name), f"simspec.md#simspec.{name}"
        if inspect.ismodule(value):
            page = f"simspec.{name}.md"
        elif name == "replay":  # the package of that name takes the place of the function
            page = "simspec.replay.replay.md#simspec.replay.replay.replay"
        said = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
        yield f"| [`simspec.{name}`]({page}) | {said} |"


def reference() -> dict[str, str]:
    """Page of the site -> Markdown: what is exported, all modules, and one page a module."""
    index, pages = ["# API reference\n", "## What `import simspec` gives\n"], {}
    index += ["| name | what it is |", "| --- | --- |", *exported()]
    for package, names in modules(ROOT).items():
        index += [f"\n## Modules of {package}\n", "| module | what it holds |", "| --- | --- |"]
        for name in names:
            index.append(f"| [`{name}`]({name}.md) | {summary(ROOT, name)} |")
            pages[f"reference/{name}.md"] = (
                f"# `{name}`\n\n::: {name}\n    options:\n      show_root_heading: false\n"
            )
    return {"reference/index.md": "\n".join(index) + "\n", **pages}
