"""Words that read as if translated, and what this repository writes instead.

They are looked for in comments, docstrings and strings of the code, and in every document, also across line ends. A
phrase is found as whole words, in any case.
"""

import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.places import ROOT
from support.source_tree import python_files, tree

CODE = ("zymogen", "data", "pretrain", "finetune", "benchmarks")
# Each phrase, a regular expression in which a space may be a line end, with what to write.
INSTEAD = {
    r"\bone behind the other\b": "concatenated, or one after the other",
    r"(?<!left )(?<!leave )(?<!leaving )(?<!one )\bbehind\b(?! (?:a|the|its) (?:URL|proxy|server)\b)": "after",
    r"\b(?:find|finds|found) again\b": "reused",
    r"\bat hand\b": "current, or this",
    r"\bbut for\b": "except, or apart from",
    r"\bwhoever\b": "anyone who, or who",
    r"\b(?:anew|afresh)\b": "again, or once more",
    r"\b(?:has|have|had) to say\b": "reports, or prints",
    r"\b(?:comes?|came|coming|goe?s?|going|went) round\b": "returns, or begins another pass",
    r"\b(?:leaves?|left) word\b": "notifies, or writes a note",
    r"\b(?:go|goes|going|gone|went) on\b": "continues",
    r"\b(?:lets?|letting) go\b": "releases, or closes",
    r"\ball the same\b": "nevertheless, or anyway",
    r"\b(?:has|have) (?:a|no) part in\b": "does not depend on, or does not enter",
    r"\b(?:held|holds?|holding) (?:it |them )?against\b": "is compared with",
    r"\bwhat (?:comes|came) of\b": "the result of, or what happened to",
    r"\bwants\b": "needs",
    r"\b(?:comes?|came) into being\b": "is made",
    r"\b(?:gets?|answers?|and) no more\b(?! than)": "nothing else, or no longer",
    r'"""Of ': "the noun first, as in 'Number of ...'",
    r'"""As (?!a\b)': "the same as, or like",
    r'"""(?:Never|All of it|Nothing)\.': "a whole sentence",
}
PHRASES = re.compile("|".join(f"({phrase})" for phrase in INSTEAD), re.I)


def code_passages(path: Path) -> Iterator[list[tuple[int, str]]]:
    """Runs of comments and of adjacent strings: for each line its number and its text.

    Quotes go, except those of a docstring, and so does the sign of a comment.
    """
    passage: list[tuple[int, str]] = []
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            kind = tokenize.tok_name[token.type]
            if kind == "COMMENT":
                text = token.string.lstrip("#: ")
            elif kind == "STRING":
                text = re.sub(r'^[A-Za-z]*(["\'])(?!\1\1)|(?<!["\'])["\']$', "", token.string)
            elif kind == "FSTRING_MIDDLE":
                text = token.string
            elif kind in ("NL", "NEWLINE", "FSTRING_START", "FSTRING_END", "INDENT", "DEDENT"):
                continue
            else:
                if passage:
                    yield passage
                passage = []
                continue
            passage += [(token.start[0] + below, line) for below, line in enumerate(text.splitlines())]
    if passage:
        yield passage


def page_passages(path: Path) -> Iterator[list[tuple[int, str]]]:
    """The lines of a document; of the changes, those that are not released."""
    text = path.read_text("utf-8")
    if path.name == "CHANGELOG.md":
        text = re.split(r"^## \[\d", text, maxsplit=1, flags=re.M)[0]
    yield list(enumerate(text.splitlines(), 1))


def pages(root: Path) -> list[Path]:
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "*.md"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return [root / name for name in done.stdout.split("\0") if name and (root / name).is_file()]


def offences(root: Path) -> list[str]:
    """``file:line: 'phrase'; write ...`` for each phrase that is not written here."""
    found = []
    for files, passages in ((python_files(root, *CODE), code_passages), (pages(root), page_passages)):
        for path in files:
            for passage in passages(path):
                text = "\n".join(line.strip() for _, line in passage)
                for match in PHRASES.finditer(text.replace("\n", " ")):
                    number, _ = passage[text.count("\n", 0, match.start())]
                    instead = list(INSTEAD.values())[(match.lastindex or 1) - 1]
                    found.append(f"{path.relative_to(root)}:{number}: {match[0]!r}; write {instead}")
    return found


def test_no_word_that_reads_as_if_translated() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    found = offences(ROOT)
    assert not found, "\n" + "\n".join(found)


# A broken tree does not keep them -----------------------------------------------------------------

BROKEN = [
    (
        "data/a.py",
        '"""Sums.\n\nBins, one behind\nthe other.\n"""\n',
        "data/a.py:3: 'one behind the other'; write concat",
    ),
    ("data/a.py", "total = 1  # of the bin at\n# hand\n", "data/a.py:1: 'at hand'; write current"),
    ("pretrain/a.py", 'print("all but "\n      f"for {1}")\n', "pretrain/a.py:1: 'but for'; write except"),
    ("pretrain/a.py", "WORDS = ('one', 'built anew')\n", "pretrain/a.py:1: 'anew'; write again"),
    (
        "benchmarks/a.py",
        'class A:\n    size: int\n    """Of a bin."""\n',
        'benchmarks/a.py:3: \'"""Of \'; write the noun',
    ),
    ("docs/a.md", "# A run\n\nIt goes\non from there.\n", "docs/a.md:3: 'goes on'; write continues"),
    ("CHANGELOG.md", "## [Unreleased]\n\n- Whoever reads it.\n", "CHANGELOG.md:3: 'Whoever'; write anyone who"),
]
KEPT = {
    "data/kept.py": "behind = goes_on = 1  # for a file behind a URL, and what a crash left behind\n",
    "pretrain/kept.py": 'NAMES = ("what it goes", "on")\n',
    "tests/kept.py": '"""Never. Whoever comes round."""\n',
    "docs/kept.md": "It holds for one and no more than one.\n",
    "CHANGELOG.md": "## [Unreleased]\n\n## [0.1.0] - 2026-01-01\n\n- It goes on.\n",
}


def checkout(root: Path, **files: str) -> Path:
    tree(root, **files)
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


@pytest.mark.parametrize(("path", "text", "offence"), BROKEN)
def test_a_word_is_found(tmp_path: Path, path: str, text: str, offence: str) -> None:
    (found,) = offences(checkout(tmp_path, **KEPT | {path: text}))
    assert found.startswith(offence)


def test_all_are_reported_at_once(tmp_path: Path) -> None:
    root = checkout(tmp_path, **KEPT | {path: text for path, text, _ in BROKEN[2:]})
    assert len(offences(root)) == 4  # of the two texts of pretrain/a.py the second stays


def test_other_uses_of_the_words_are_kept(tmp_path: Path) -> None:
    assert offences(checkout(tmp_path, **KEPT)) == []


@pytest.mark.parametrize("phrase", INSTEAD)
def test_no_advice_is_itself_a_word_to_replace(phrase: str) -> None:
    assert PHRASES.search(INSTEAD[phrase]) is None
