"""Paths and files as other people name and write them."""

import json
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

from finetune.recipe import Recipe as FinetuneRecipe
from pretrain.recipe import Recipe
from support.inputs.faulty_server import Site, serving
from support.launching import Launched
from support.other_machines import RECIPE, Row, run, table
from zymogen.settings.toml_file import _declared, check, sections


def recipe(content: bytes):
    def write(folder: Path) -> None:
        (folder / "marked.toml").write_bytes(content)

    return write


def no_utf_8(folder: Path, ended: Launched) -> None:
    with pytest.raises(ValueError, match=r"marked\.toml: not UTF-8, but perhaps UTF-16; save it as UTF-8"):
        sections(folder / "marked.toml")


def bracketed(folder: Path) -> None:
    (folder / "[old] set (1)").mkdir()
    (folder / "ok.fasta").rename(folder / "[old] set (1)" / "ok.fasta")


def expect(holds: bool) -> None:
    assert holds


def written(place: str):
    """Writes the proteins as the table or FASTA file `place`."""

    def write(folder: Path) -> None:
        (folder / place).parent.mkdir(exist_ok=True)
        lines = (folder / "ok.fasta").read_text().split("\n")
        rows = {"id": [line[1:] for line in lines[:-1:2]], "sequence": lines[1::2]}
        records = list(zip(*rows.values(), strict=True))
        match Path(place).suffix:
            case ".parquet":
                import pyarrow
                import pyarrow.parquet

                pyarrow.parquet.write_table(pyarrow.table(rows), folder / place)
            case ".json":
                (folder / place).write_text(json.dumps([{"id": i, "sequence": s} for i, s in records]))
            case ".csv":
                (folder / place).write_text("\n".join(map(",".join, [tuple(rows), *records])))
            case _:
                (folder / place).write_text("\n".join(lines))

    return write


PLAN = ("-m", "pretrain", "--plan", "--untimed")
FIFO = 'mkfifo f.fasta; cat ok.fasta > f.fasta & "$@" f.fasta; status=$?; kill %1 2> /dev/null; exit $status'
SUBSTITUTION = '"$@" <(cat ok.fasta)'


def signed(folder: Path, ended: Launched) -> None:
    """A server gets the query of a table as it was typed."""
    with serving(Site(b"id,sequence\np1,MKTAYIAKQRQISFVK\n")) as site:
        words = ["-m", "data", "head", site.url.replace(".fasta", ".csv?sig=a%20b&x"), "--store-dir", "s"]
        ended = run([sys.executable, *words], folder, {})
        assert ended.output.endswith(">p1\nMKTAYIAKQRQISFVK\n"), ended.output
        assert set(site.paths) == {"/proteins.csv?sig=a%20b&x"}


ROWS = [
    Row(fault=25, situation="query that a server has signed", check=signed),
    Row(
        fault=18,
        situation="byte order mark of a recipe",
        prepare=recipe(b"\xef\xbb\xbf" + RECIPE.encode()),
        check=lambda folder, ended: expect(sections(folder / "marked.toml")["run"] == {"directory": "runs/t"}),
    ),
    Row(fault=18, situation="recipe in UTF-16", prepare=recipe(RECIPE.encode("utf-16")), check=no_utf_8),
    Row(
        fault=27,
        situation="pattern in a folder with brackets",
        prepare=bracketed,
        words=("-m", "data", "build", "[old] set (1)/*.fasta", "--store-dir", "s"),
        status=2,
        says=(r"no file matches this pattern.*brackets.*'\[\[\]old\] set \(1\)/\*\.fasta'",),
    ),
    *(
        Row(
            fault=9,
            situation=f"{kind} in {where}",
            slow=number > 1,
            prepare=written(place),
            words=("-m", "data", "build", place, "--store-dir", "s"),
            says=(r"records +60\n",),
        )
        for number, (kind, where, place) in enumerate(
            [
                ("Parquet", "a name with every special character", "a::b[1] {x}?y*.parquet"),
                ("JSON", "a folder with brackets", "[old]?/x.json"),
                ("Parquet", "a folder with brackets", "[old]/x.parquet"),
                ("CSV", "a name with every special character", "a::b[1] {x}?y*.csv"),
                ("FASTA", "a name with every special character", "a::b[1] {x}?y*.fasta"),
            ]
        )
    ),
    Row(
        fault=9,
        situation="data set in a folder with brackets is built once",
        slow=True,
        prepare=written("[old]/x.parquet"),
        words=("-m", "data", "build", "datasets://{folder}/[old]", "--store-dir", "s"),
        shell='"$@" && "$@"',
        says=(r"(?s)records +60\n.*time +none: it was there already",),
    ),
    *(
        Row(
            fault=11,
            situation=f"tilde in {what}",
            prepare=lambda folder: [(folder / "home").mkdir(), (folder / "ok.fasta").rename(folder / "home/ok.fasta")],
            environment={"HOME": "{folder}/home"},
            words=words,
            says=says,
            check=lambda folder, ended: expect(not (folder / "~").exists()),
        )
        for what, words, says in (
            ("an option", ("-m", "data", "build", "~/ok.fasta", "--output=~/s"), (r"store +\S+/home/s\n",)),
            ("a default", ("-m", "data", "build", "~/ok.fasta", "--store-dir", "~/s"), (r"store +\S+/home/s/\w+\n",)),
            ("a word", (*PLAN, "~/ok.fasta", "run.directory=~/r"), (r"corpus +\S+/home/ok.fasta: 60",)),
        )
    ),
    *(
        Row(
            fault=15,
            situation=f"{what} for {' '.join(words[1:])}",
            shell=shell,
            words=words,
            status=status,
            says=(r"error: .*is standard input, a pipe or a device, which can be read once",),
        )
        for what, shell in (("FIFO", FIFO), ("process substitution", SUBSTITUTION))
        for status, words in (
            (78, (*PLAN,)),
            (2, ("-m", "data", "stats")),
            (2, ("-m", "data", "head")),
            (2, ("-m", "data", "build")),
            (78, ("-m", "finetune.look")),
        )
    ),
    *(
        Row(
            fault=15,
            situation=f"pipe for {name}",
            shell=f'"$@" {name}=<(cat ok.fasta)',
            words=("-m", "pretrain", "tiny.toml"),
            status=78,
            says=(rf"error: .*{name}: '/dev/fd/\d+' is standard input, a pipe or a device",),
        )
        for name in ("data.clusters", "data.exclude")
    ),
]


@table(ROWS)
def test_row(row: Row, tmp_path: Path) -> None:
    row.run(tmp_path)


# Every setting that takes a path ----------------------------------------------------------------------------------

REQUIRED: dict[type, dict[str, Any]] = {
    Recipe: {
        "run": {"directory": "r"},
        "model": {"preset": "esm2_8m"},
        "data": {"sources": ["x"]},
        "schedule": {"total_tokens": 1},
    },
    FinetuneRecipe: {
        "run": {"directory": "r"},
        "model": {"preset": "esm2_8m"},
        "data": {"table": ["x"], "sequence": ["s"]},
        "tasks": [{"name": "t", "type": "regression"}],
        "schedule": {"total_tokens": 1},
        "split": {"by": "file", "file": "s.csv"},
    },
}
OTHER_STRINGS = (
    *("log_every", "evaluate_every", "checkpoint_every", "may_lose", "checkpoint_url", "saves_may_fail_for", "preset"),
    *("timeout", "sequence", "mutation", "protein", "id", "linker", "balance", "name", "columns", "unit", "missing"),
    *("conditions", "lower_bounds", "upper_bounds", "bound_column"),
    *("unit_column", "classes", "column", "train", "validation", "test", "unused", "validation_column", "cuts", "kind"),
    *("targets", "adapter_without", "options", "format", "format_options"),
)
"""Settings of any text that is no path; a new setting of text is one of these, or has the unit "path"."""


def texts(recipe: type) -> dict[str, bool]:
    """Settings of any text -> whether they are paths."""
    found = ((name, f.metadata["unit"] == "path", str(hint)) for name, f, hint in _declared(recipe))
    return {name: is_path for name, is_path, hint in found if "str" in hint and "Literal" not in hint}


@pytest.mark.parametrize("recipe", REQUIRED)
def test_every_setting_of_text_is_a_path_or_known_to_be_none(recipe: type) -> None:
    assert {name for name, is_path in texts(recipe).items() if not is_path} == {
        name for name in texts(recipe) if name.rpartition(".")[2] in OTHER_STRINGS
    }


@pytest.mark.parametrize(
    ("recipe", "name"), [(recipe, name) for recipe in REQUIRED for name, is_path in texts(recipe).items() if is_path]
)
def test_tilde_is_the_home_folder_in_every_path(recipe: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of")
    section, _, last = name.rpartition(".")
    hint = str(next(hint for each, _, hint in _declared(recipe) if each == name))
    value: Any = ["~/x", "y"] if "tuple" in hint else "~/x"
    content = {of: dict(table) if isinstance(table, dict) else table for of, table in REQUIRED[recipe].items()}
    if section == "data.mixture":
        content["data"] = {"mixture": [{"sources": ["z"], last: value}]}
    else:
        content[section] = {**content.get(section, {}), last: value}
    if last == "init":
        content["model"].pop("preset")
    if last == "wild_type":
        content["data"] = {"table": ["x"], "mutation": "m", last: value}
    found: Any = check(recipe, content, "a recipe")
    for part in name.split("."):
        found = found[0] if isinstance(found, tuple) and is_dataclass(found[0]) else found
        found = getattr(found, part)
    assert found == (("/home/of/x", "y") if "tuple" in hint else "/home/of/x")
