"""The documentation site has every page, every public name and every command; `make docs` fails on what it warns of."""

import importlib
import importlib.util
import re

import pytest
from pages import ROOT

from sphere.cli.main import COMMANDS

DOCS = ROOT / "docs"
CONFIG = (ROOT / "mkdocs.yml").read_text()
DIRECTIVES = {
    name for page in DOCS.glob("reference/*.md") for name in re.findall(r"^::: ([\w.]+)", page.read_text(), re.M)
}


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "scripts" / "docs_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation():
    """Those of results/, which a command makes, are put there by the build; history is not part of the site."""
    there = {str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md") if page.parent.name != "history"}
    there = {page for page in there if not page.startswith("results/") or page == "results/index.md"}
    named = re.findall(r"[\w/-]+\.md", CONFIG[CONFIG.index("\nnav:") :])
    assert sorted(named) == sorted(there)


def test_nothing_is_loaded_from_elsewhere():
    """Neither fonts nor scripts nor styles; links in the text may lead anywhere."""
    assert "font: false" in CONFIG
    assert "//" not in re.sub(r"#.*", "", CONFIG)
    assert "url(" not in (DOCS / "assets" / "site.css").read_text()


@pytest.mark.parametrize("module", ["sphere", "sphere.nets", "sphere.torch", "sphere.envs"])
def test_public_names_are_in_the_reference(module):
    """By themselves, or with the module that they are public in or come from."""
    if module == "sphere.torch":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    found = importlib.import_module(module)
    for name in found.__all__:
        one = getattr(found, name)
        home = getattr(one, "__module__", None)
        assert DIRECTIVES & {module, f"{module}.{name}", home, f"{home}.{name}"}, name


def test_documented_names_exist():
    for name in DIRECTIVES:
        module = name
        while importlib.util.find_spec(module.split(".")[0]) and not _is_module(module):
            module = module.rpartition(".")[0]
        for part in name.removeprefix(module).split(".")[1:]:
            assert hasattr(importlib.import_module(module), part), name


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_the_command_line_is_the_programs_own_help(hooks):
    page = hooks.command_line()
    for command in COMMANDS:
        assert f"## sphere {command}\n" in page
    for option in ("--steps-per-task", "--launcher", "--episodes", "--no-figures", "--uniform"):
        assert option in page
    assert "is not known" not in page
    assert hooks.HELP in (DOCS / "reference" / "command-line.md").read_text()


def test_sections_of_the_readme_are_found_and_their_links_moved(hooks):
    copied = []
    pages = {page: re.findall(hooks.SECTION, page.read_text()) for page in DOCS.glob("*.md")}
    assert sum(map(len, pages.values())) == 4
    for page, headings in pages.items():
        for heading in headings:
            text = hooks.moved(hooks.section(heading), ROOT, page, lambda path: copied.append(path) or DOCS / path.name)
            assert text
            assert not re.search(r"\]\(docs/", text)
    assert copied
    assert all(path.is_file() for path in copied)


def test_links_in_code_are_left_alone(hooks):
    text = '[a](README.md)\n\n```python\nchange["actor"](README.md)\n```\n'
    moved = hooks.moved(text, ROOT, DOCS / "index.md", lambda path: DOCS / "files" / path.name)
    assert moved == text.replace("[a](README.md)", "[a](files/README.md)")


def test_no_section_is_an_error(hooks):
    with pytest.raises(ValueError, match="the README has no section 'Nowhere'"):
        hooks.section("Nowhere")
