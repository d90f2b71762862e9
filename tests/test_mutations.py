"""Every deliberate break of the list can be made, and the command that makes them sees which tests notice one."""

from collections import Counter
from pathlib import Path

import pytest

from support import mutations
from support.mutations import LIST, failure, misfits, tried

CONTRACTS = {f"C{number}" for number in range(1, 13)}
"""Those of docs/contracts.md."""


def test_every_break_can_be_made() -> None:
    assert misfits() == []


def test_every_contract_is_broken() -> None:
    found = mutations.mutations()
    counts = Counter(mutation["contract"] for mutation in found)
    assert counts.keys() == CONTRACTS
    assert min(counts.values()) >= 2
    assert counts.total() >= 40
    sentences = {mutation["breaks"] for mutation in found}
    assert len(sentences) == len(found)
    assert all(sentence.endswith(".") for sentence in sentences)


SMALL = {
    "Makefile": """
test: setup ## minutes
\t$(PYTEST) -m "not launch"

test-engines: setup ## more
\t$(PYTEST) -m "launch"
""",
    "setup.cfg": "[tool:pytest]\nmarkers =\n    launch: runs the program\n",
    "program.py": "ONE, TWO, THREE = 1, 2, 3\n",
    "tests/test_named.py": """
import program, pytest

def test_one():
    assert program.ONE == 1

@pytest.mark.launch
def test_two():
    assert program.TWO == 2
""",
    "tests/test_other.py": "import program\n\ndef test_three():\n    assert program.THREE == 3\n",
}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with three tests: one that is named, one of a larger tier, and one that nobody names."""
    for name, text in SMALL.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("old", "by", "tier"),
    [
        ("1, 2, 3", "tests/test_other.py::test_three", "test"),
        pytest.param("2, 3", "tests/test_named.py::test_two", "test-engines", marks=pytest.mark.slow),
    ],
)
def test_the_first_test_that_notices_is_named_with_its_tier(small: Path, old: str, by: str, tier: str) -> None:
    new = {"1, 2, 3": "1, 2, 4", "2, 3": "9, 3"}[old]
    found = tried({"file": "program.py", "old": old, "new": new, "tests": ["tests/test_named.py"]})
    assert (found["by"], found["tier"]) == (by, tier)
    assert (small / "program.py").read_text() == SMALL["program.py"]


@pytest.mark.slow
def test_what_nobody_notices_is_told_from_a_test_that_always_fails(small: Path) -> None:
    (small / "program.py").write_text("ONE, TWO, THREE, FOUR = 1, 2, 4, 4\n")
    with mutations.copied() as copy:
        assert failure(copy, "", ["tests/test_named.py"]) is None
        assert failure(copy, "", ["tests"]) == "tests/test_other.py::test_three"


@pytest.mark.parametrize(
    ("old", "tests", "said"),
    [
        ("ONE", "test_named", "program.py has 1 times"),
        ("FOUR", "test_named", "program.py has 0 times, and must have once, to be replaced: 'FOUR'"),
        (", ", "test_named", "program.py has 4 times"),
        ("TWO", "test_lost", "program.py: no test tests/test_lost.py"),
    ],
)
def test_a_list_that_does_not_fit_is_told(small: Path, old: str, tests: str, said: str) -> None:
    (small / LIST).write_text(
        f'[[mutation]]\nfile = "program.py"\nold = "{old}"\nnew = "ONE"\ntests = ["tests/{tests}.py"]\n'
    )
    (found,) = misfits(small)
    assert found.startswith(said)
