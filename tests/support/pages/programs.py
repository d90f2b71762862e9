"""Whether what a command names is there: its module, options, tests, marks, targets and files.

A rule as in `test_docs`: a command, and what it names that is not in the tree.
"""

import itertools
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from support.places import ROOT

PLAIN = {"python", "python3"}


def absent_of(command: str) -> list[str]:
    """What the command names and the tree does not have."""
    words = shlex.split(command)
    while "=" in words[0]:
        words = words[1:]  # a variable of the environment
    program, *rest = words
    if program in PLAIN or program == "accelerate":
        return list(_of_python(rest))
    if program == "pytest":
        return list(_of_pytest(rest))
    if program == "make":
        return list(_of_make(rest))
    return [] if (ROOT / program).is_file() else [program]


def _files(words: list[str]) -> Iterator[str]:
    of_tree = [word for word in words if re.match(r"(?:tests|recipes|accelerate_configs|benchmarks)/", word)]
    yield from (word for word in of_tree if not (ROOT / word).exists())


def _of_python(words: list[str]) -> Iterator[str]:
    yield from _files(words)
    if "-m" not in words:
        yield "-m"
        return
    module, *after = words[words.index("-m") + 1 :]
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        yield module
        return
    folder, is_package = Path(spec.origin).parent, spec.submodule_search_locations is not None
    if is_package and not (folder / "__main__.py").is_file():
        yield f"{module}.__main__"
    sources = [*folder.glob("*.py")] if is_package else [Path(spec.origin)]
    text = "".join(path.read_text("utf-8") for path in [*sources, ROOT / "benchmarks/results/record.py"])
    yield from (word for word in after if word.startswith("--") and f'"{word}"' not in text)


def _of_pytest(words: list[str]) -> Iterator[str]:
    yield from _files(words)
    after = dict(itertools.pairwise(words))
    paths = [ROOT / word for word in words if word.startswith("tests/")]
    tests = [path for one in paths for path in ([one] if one.suffix else one.rglob("test_*.py")) if path.is_file()]
    names = " ".join(
        name for path in tests for name in [path.name, *re.findall(r"^def (test_\w+)", path.read_text(), re.M)]
    )
    if "-k" in after and after["-k"] not in names:
        yield f"-k {after['-k']}"
    marks = re.findall(r"^    (\w+): ", (ROOT / "setup.cfg").read_text(), re.M)
    yield from (word for word in re.findall(r"\w+", after.get("-m", "")) if word not in {*marks, "not", "or", "and"})


def _of_make(words: list[str]) -> Iterator[str]:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        name, is_variable, _ = word.partition("=")
        if not re.search(rf"^{name} \?=" if is_variable else rf"^{name}:", makefile, re.M):
            yield word
