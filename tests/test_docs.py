"""What documents and docstrings point to is there, in this repository, and nowhere else.

Each rule is a function of a root folder that returns its offences, as in `test_layout`.
"""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pretrain import __main__ as program
from support.pages.shown import commands, recipe_of
from support.places import ROOT

CONTRACTS = [f"C{number}" for number in range(1, 13)]
FOLDERS = "accelerate_configs|benchmarks|data|docs|finetune|pretrain|recipes|tests|zymogen"
# Documents that a user of this repository does not have.
OUTSIDE = re.compile(r"\bDESIGN\b|§|(?<![\w/])notes/|\.\./shared\b|\bhouse\.md\b")


def pages(root: Path) -> list[Path]:
    """The documents, but for what a model's card or an export says of itself."""
    return [*sorted(root.glob("*.md")), *sorted(root.glob("*/README.md")), *sorted((root / "docs").rglob("*.md"))]


def tracked(root: Path) -> Iterator[tuple[str, str]]:
    """Path and text of each text file that git hands over, but for this one and the license."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    for name in done.stdout.split("\0"):
        if name and name not in ("tests/test_docs.py", "LICENSE") and (root / name).is_file():
            yield name, (root / name).read_text("utf-8", errors="replace")


# The rules ----------------------------------------------------------------------------------------


def links_to_nothing(root: Path) -> list[str]:
    return [
        f"{page.relative_to(root)}: {target}"
        for page in pages(root)
        for target in re.findall(r"\]\(([^):#]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]


def links_to_no_heading(root: Path) -> list[str]:
    offences = []
    for page in pages(root):
        for target, anchor in re.findall(r"\]\(([^):#]*)#([^)]+)\)", page.read_text("utf-8")):
            text = (page.parent / target if target else page).read_text("utf-8")
            headings = [re.sub(r"[^\w\- ]", "", line.lower()) for line in re.findall(r"^#+ (.+)$", text, re.M)]
            if anchor not in [heading.replace(" ", "-") for heading in headings]:
                offences.append(f"{page.relative_to(root)}: {target}#{anchor}")
    return offences


def absent_files(root: Path) -> list[str]:
    """Of documents and Python files; `tests/test_x.py` is a path and must be where it says."""
    return [
        f"{name}: {path}"
        for name, text in tracked(root)
        if name.endswith(".md") and name != "CHANGELOG.md"
        for path in re.findall(rf"(?<![\w/.-])((?:{FOLDERS})/[\w/]+\.(?:md|py|sh|toml|yaml))\b", text)
        if not (root / path).exists()
    ]


def absent_tests(root: Path) -> list[str]:
    modules = {path.name: path.read_text("utf-8") for path in (root / "tests").rglob("test_*.py")}
    return [
        f"{page.relative_to(root)}: {module}" + (f"::{test}" if test else "")
        for page in pages(root)
        for module, test in re.findall(r"\b(test_\w+\.py)(?:::(test_\w+))?", page.read_text("utf-8"))
        if module not in modules or (test and not re.search(rf"^def {test}\(", modules[module], re.M))
    ]


def words_that_point_outside(root: Path) -> list[str]:
    return [f"{name}: {found}" for name, text in tracked(root) for found in OUTSIDE.findall(text)]


def contracts_without_their_page(root: Path) -> list[str]:
    """A file that speaks of contract C5 says where contracts are explained."""
    return [
        name
        for name, text in tracked(root)
        if re.search(r"\bcontracts? C\d", text, re.I) and "docs/contracts.md" not in text
    ]


def contracts_without_a_test(root: Path) -> list[str]:
    _, *sections = re.split(r"^## ", (root / "docs/contracts.md").read_text("utf-8"), flags=re.M)
    titles = [section.partition(".")[0] for section in sections]
    unproven = [title for title, section in zip(titles, sections, strict=True) if "`test_" not in section]
    unreasoned = [title for title, section in zip(titles, sections, strict=True) if "*Reason.*" not in section]
    return unproven + unreasoned + ([] if titles == CONTRACTS else [f"sections {titles}"])


# The tree keeps them ------------------------------------------------------------------------------

OF_PAGES = (links_to_nothing, links_to_no_heading, absent_tests, contracts_without_a_test)
OF_GIT = (absent_files, words_that_point_outside, contracts_without_their_page)


@pytest.mark.parametrize("rule", [*OF_PAGES, *OF_GIT], ids=lambda rule: rule.__name__)
def test_tree_keeps_the_rule(rule: Callable[[Path], list[str]]) -> None:
    if rule in OF_GIT and not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    assert rule(ROOT) == []


@pytest.mark.parametrize("page", pages(ROOT), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_read_their_recipes(page: Path) -> None:
    for command in commands(page):
        if command.startswith("accelerate"):
            words = shlex.split(command)
            if "pretrain" not in words:
                assert words[words.index("-m") + 1] == "finetune", command  # its recipe is one that `look` writes
            elif (after := words[words.index("pretrain") + 1 :])[0].endswith(".toml"):
                recipe_of(command)  # its recipe and its overrides hold
            else:
                program._sort(program._parser().parse_intermixed_args(after))
            assert (ROOT / shlex.split(command)[3]).is_file()


# A broken tree does not ---------------------------------------------------------------------------

PROVEN = "".join(f"## {name}. A sentence\n\n*Reason.* One.\n\n- `test_a.py::test_it`\n\n" for name in CONTRACTS)
BROKEN = [
    (links_to_nothing, "README.md", "[data](docs/dada.md)", "README.md: docs/dada.md"),
    (links_to_nothing, "recipes/README.md", "[data](docs/contracts.md#c1-a-sentence)", "recipes/README.md: docs/"),
    (links_to_no_heading, "docs/b.md", "[C2](contracts.md#c2-a-word)", "docs/b.md: contracts.md#c2-a-word"),
    (links_to_no_heading, "docs/b.md", "# Here\n[there](#there)", "docs/b.md: #there"),
    (absent_files, "docs/b.md", "see `data/stroe.py`", "docs/b.md: data/stroe.py"),
    (absent_files, "docs/b.md", "`pytest tests/data/test_a.py -q`", "docs/b.md: tests/data/test_a.py"),
    (absent_tests, "docs/b.md", "`test_a.py::test_i`", "docs/b.md: test_a.py::test_i"),
    (absent_tests, "docs/b.md", "`test_b.py`", "docs/b.md: test_b.py"),
    (words_that_point_outside, "data/a.py", '"""As in DESIGN."""', "data/a.py: DESIGN"),
    (words_that_point_outside, "docs/b.md", "see notes/model.md", "docs/b.md: notes/"),
    (words_that_point_outside, "a.toml", "# of ../shared/x", "a.toml: ../shared"),
    (words_that_point_outside, "data/a.py", "# paper, §4", "data/a.py: §"),
    (contracts_without_their_page, "data/a.py", '"""Contract C5."""', "data/a.py"),
    (contracts_without_a_test, "docs/contracts.md", PROVEN.replace("- `test_a.py::test_it`\n", "", 1), "C1"),
    (contracts_without_a_test, "docs/contracts.md", PROVEN.replace("*Reason.*", "", 1), "C1"),
    (contracts_without_a_test, "docs/contracts.md", PROVEN.partition("## C12")[0], "sections"),
]


def tree(root: Path, **files: str) -> Path:
    """A checkout of the files and of pages that break no rule."""
    kept = {
        "README.md": "[contracts](docs/contracts.md#c1-a-sentence), `tests/test_a.py`, export/notes/mine.txt",
        "docs/contracts.md": PROVEN,
        "tests/test_a.py": "def test_it() -> None: ...\n",
        "data/step.py": '"""Contract C4 (docs/contracts.md)."""\n',
    }
    for name, text in (kept | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


@pytest.mark.parametrize(("rule", "path", "text", "offence"), BROKEN)
def test_rule_finds_the_offence(
    tmp_path: Path, rule: Callable[[Path], list[str]], path: str, text: str, offence: str
) -> None:
    (found,) = rule(tree(tmp_path, **{path: text}))
    assert found.startswith(offence)


@pytest.mark.parametrize("rule", [*OF_PAGES, *OF_GIT], ids=lambda rule: rule.__name__)
def test_a_tree_without_an_offence(tmp_path: Path, rule: Callable[[Path], list[str]]) -> None:
    assert rule(tree(tmp_path)) == []
