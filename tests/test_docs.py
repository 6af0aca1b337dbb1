"""The documentation: examples, links, commands, the site."""

import importlib.util
import inspect
import os
import re
import subprocess
import sys

import pytest
import typer
from documents import PAGES, ROOT, blocks, broken_links, command_lines, output_of
from pages import Document

import simspec
from simspec.cli import app, load_commands

pytestmark = pytest.mark.docs

DOCS = ROOT / "docs"
EXTENDING = blocks(DOCS / "extending.md")
RECORDINGS = DOCS / "recordings.md"


def _script(name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOKS = _script("hooks")
MODULES = [name for names in HOOKS.modules(ROOT).values() for name in names]


@pytest.mark.parametrize("number", range(len(EXTENDING)))
def test_extending_examples_run(number):
    assert output_of(EXTENDING[number]).strip()


def test_drafter_of_the_extending_page_is_recorded_and_swept():
    code = (DOCS / "echo_drafter.py").read_text(encoding="utf-8")
    assert output_of(code).count("\n") == 5


def test_recording_written_by_the_format_example_replays(tmp_path):
    code = (DOCS / "write_recording.py").read_text(encoding="utf-8")
    blocked = "import sys\nsys.modules['simspec'] = None\n"
    output_of(blocked + code, tmp_path)
    trace = simspec.load_trace(tmp_path / "mine.parquet")
    rounds = simspec.replay(trace, simspec.policies.parse("confidence:0.5"), seed=0)
    assert rounds.offset.tolist() == [0, 2, 4]
    assert simspec.committed(rounds, trace).sum() == trace.rows
    trace.save(tmp_path / "again.parquet")
    assert simspec.load_trace(tmp_path / "again.parquet") == trace


def test_format_page_names_every_field():
    text = RECORDINGS.read_text(encoding="utf-8")
    fields = [*simspec.Trace.__dataclass_fields__, *simspec.TraceMeta.__dataclass_fields__]
    assert [name for name in fields if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_exist(page):
    assert broken_links(page) == []


def test_control_a_broken_link_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("[here](page.md) [web](https://example.org) [gone](gone.md#part)")
    assert broken_links(page) == ["gone.md"]


def test_the_site_has_the_pictures_of_its_pages():
    named = {
        str((page.parent / link).resolve().relative_to(ROOT.resolve()))
        for page in PAGES
        for link in re.findall(r"!\[[^]]*\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    }
    assert named == set(HOOKS.PICTURES)


def _click_commands():
    root = typer.Typer()
    root.registered_commands = list(app.registered_commands)
    root.registered_groups = list(app.registered_groups)
    names = {command.name for command in root.registered_commands}
    if "record" not in names:
        from importlib.metadata import entry_points

        assert load_commands(root, entry_points(group="simspec.commands")) == []
    return typer.main.get_command(root).commands


def _commands():
    return {
        name: {
            option
            for inner in (command, *getattr(command, "commands", {}).values())  # of a group
            for parameter in inner.params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        for name, command in _click_commands().items()
    }


def test_documented_commands_and_options_exist():
    commands = _commands()
    lines = [line for page in PAGES for line in command_lines(page)]
    assert len(lines) >= 20
    for line in lines:
        _, name, *rest = line.split()
        assert name in commands, line
        options = {word for word in rest if re.match(r"--?[a-z]", word)}
        assert options <= commands[name] | {"--help"}, line


def lacking(line):
    """Options that the command needs and the line has not."""
    _, name, *rest = line.split()
    command = _click_commands()[name]
    inner = getattr(command, "commands", {})
    needed = inner[rest[0]].params if inner else command.params
    return [
        p.name for p in needed if p.required and p.opts[0][0] == "-" and not {*p.opts} & {*rest}
    ]


def test_readme_commands_have_the_options_that_they_need():
    lines = [line for line in command_lines(ROOT / "README.md") if line.count(" ") > 1]
    assert {line: lacking(line) for line in lines if lacking(line)} == {}
    assert lacking("simspec record prompts.jsonl") == ["out"]


def test_readme_shows_every_command():
    shown = {line.split()[1] for line in command_lines(ROOT / "README.md")}
    assert set(_commands()) - {"demo"} <= shown


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built documentation: SIMSPEC_SITE where `make docs` has just built it."""
    if built := os.environ.get("SIMSPEC_SITE"):
        return ROOT / built
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=500)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_module_has_a_reference_page(site):
    missing = [name for name in MODULES if not (site / "reference" / f"{name}.html").exists()]
    assert missing == []


def test_every_public_name_is_in_the_reference(site):
    page = (site / "reference" / "simspec.html").read_text(encoding="utf-8")
    names = {name for name in simspec.__all__ if not inspect.ismodule(getattr(simspec, name))}
    # the package of that name takes the place of the function
    module = (site / "reference" / "simspec.replay.replay.html").read_text(encoding="utf-8")
    assert 'id="simspec.replay.replay.replay"' in module
    index = (site / "reference" / "index.html").read_text(encoding="utf-8")
    first = index.partition('id="modules-of-simspec"')[0]  # what is exported comes first
    assert [name for name in simspec.__all__ if f">simspec.{name}<" not in first] == []
    assert [name for name in names - {"replay"} if f'id="simspec.{name}"' not in page] == []


def test_site_loads_nothing_from_elsewhere(site):
    pages = [*site.rglob("*.html")]
    assert len(pages) > len(MODULES)
    for page in pages:
        loaded = Document(page.read_text(encoding="utf-8")).loaded
        outside = [link for link in loaded if re.match(r"(https?:)?//", link)]
        assert outside == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()[^;)]*//", style.read_text(encoding="utf-8"))
