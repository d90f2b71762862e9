"""Bad input to fine-tuning: one line that says where and what to do, exit status 2, and nothing left of the run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from finetune.__main__ import main
from finetune.assays import Assays
from support.assays.small_run import Rows, changed, write

Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """The one error of a run on a table of 40 proteins that was changed."""

    def run(change: Callable[[Rows], Rows], before_and_after: tuple[str, str] = ("", ""), *words: str) -> str:
        recipe = write(tmp_path, change, count=60)
        recipe.write_text(recipe.read_text().replace(*before_and_after))
        before = {path.name for path in tmp_path.iterdir()}
        assert main([str(recipe), *words]) == 78
        said = capsys.readouterr()
        assert {path.name for path in tmp_path.iterdir()} - before <= {"stores"}
        assert "Traceback" not in said.out + said.err
        (error,) = [line for line in said.err.splitlines() if "error" in line.lower()]
        assert said.err.splitlines()[-1] == error
        return error.removeprefix("error: ")

    return run


def all_rows(**cells: Callable[[int, dict[str, str]], str]) -> Callable[[Rows], Rows]:
    """Fills columns of every row."""
    return lambda rows: [row | {name: made(i, row) for name, made in cells.items()} for i, row in enumerate(rows)]


NOTHING = ("", "")
BY_PART = ('by = "random"\nfractions = [0.6, 0.2, 0.2]', 'by = "column"\ncolumn = "name"')


def part(number: int) -> str:
    return ("train", "validation", "test", "train")[number % 4]


def states(row: dict[str, str]) -> str:
    return "h" * len(row["sequence"])


def same(rows: Rows) -> Rows:
    return rows


CASES: dict[str, tuple[Callable[[Rows], Rows], tuple[str, str], list[str]]] = {
    "a missing column": (same, ('name = "binds"', 'name = "bind"'), ["'bind'", "assays.csv", "'binds'"]),
    "a number that is none": (
        changed(6, {"affinity_b": "strong"}),
        NOTHING,
        ["assays.csv: row 8 ('p6'), column 'affinity_b': 'strong' is no number"],
    ),
    "a class that is none": (
        changed(6, {"binds": "perhaps"}),
        NOTHING,
        ["assays.csv: row 8 ('p6'), column 'binds'", "'perhaps'; allowed are 'no', 'yes'"],
    ),
    "labels of residues of another length": (
        changed(8, {"state": "hhe"}),
        NOTHING,
        ["assays.csv: row 10 ('p8'), column 'state': 3 labels for a sequence of "],
    ),
    "a residue that is none": (
        changed(8, {"sequence": "MKT1"}),
        NOTHING,
        ["says 'MKT1'"],
    ),
    "one class": (
        all_rows(place=lambda *_: "nucleus"),
        NOTHING,
        ["training labels of 'place' are 'nucleus': there is nothing to tell apart"],
    ),
    "zero under a logarithm": (
        changed(6, {"affinity_b": "0"}),
        ('columns = ["affinity_*"]', 'columns = ["affinity_b"]\ntransform = "log10"'),
        ["assays.csv: row 8 ('p6'), column 'affinity_b': '0' is not above 0"],
    ),
    "a protein that is too long": (
        changed(8, {"sequence": "MKT" * 30, "state": ""}),
        NOTHING,
        ["row 10", "has 90", "Raise data.crop_tokens to 92"],
    ),
    "a task without a training label": (
        all_rows(state=lambda number, row: states(row) if part(number) == "test" else "", name=lambda i, _: part(i)),
        BY_PART,
        ["no training record has a label of 'state'", "choose another split"],
    ),
    "no training at all": (
        all_rows(name=lambda *_: "test"),
        BY_PART,
        ["train"],
    ),
    "no table": (same, ("assays.csv", "assay.csv"), ["assay.csv: no such file; check its name"]),
    "a task of an unknown type": (same, ('"ordinal"', '"ordered"'), ["tasks", "'ordered'"]),
    "weights that do not exist": (
        same,
        ('preset = "esm2_60k"', 'init = "/nowhere/run"'),
        ["/nowhere/run: no transformers model can be read there", "give a directory with config.json"],
    ),
    "a setting of another kind": (same, ('kind = "frozen"', 'kind = "frozen"\nrank = 4'), ["adaptation.rank is 4"]),
}


LONG = "weights that do not exist"
"""These are looked for after relatives were searched for."""


@pytest.mark.parametrize(
    "what", [*(name for name in CASES if name != LONG), pytest.param(LONG, marks=pytest.mark.slow)]
)
def test_bad_input_is_one_line_and_leaves_nothing(refused: Refused, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, in_recipe, said = CASES[what]
    if what != LONG:  # of a large table the search for relatives takes minutes
        monkeypatch.setattr(Assays, "audited", lambda *_: pytest.fail("relatives were searched first"))
    error = refused(change, in_recipe)
    print(error)
    for part in said:
        assert part in error, part
