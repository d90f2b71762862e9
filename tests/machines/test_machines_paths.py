"""Paths and files as other people name and write them."""

from pathlib import Path

from support.other_machines import RECIPE, Row, table


def recipe(content: bytes):
    def write(folder: Path) -> None:
        (folder / "marked.toml").write_bytes(content)

    return write


def bracketed(folder: Path) -> None:
    (folder / "[old] set (1)").mkdir()
    (folder / "ok.fasta").rename(folder / "[old] set (1)" / "ok.fasta")


ROWS = [
    Row(
        fault=18,
        situation="byte order mark of a recipe",
        prepare=recipe(b"\xef\xbb\xbf" + RECIPE.encode()),
        words=("-m", "data", "digest", "marked.toml", "--steps", "0:1"),
        says=(r"\b[0-9a-f]{16,}\b",),
    ),
    Row(
        fault=18,
        situation="recipe in UTF-16",
        prepare=recipe(RECIPE.encode("utf-16")),
        words=("-m", "data", "digest", "marked.toml", "--steps", "0:1"),
        status=2,
        says=(r"marked\.toml: not UTF-8, but perhaps UTF-16; save it as UTF-8",),
    ),
    Row(
        fault=27,
        situation="pattern in a folder with brackets",
        prepare=bracketed,
        words=("-m", "data", "build", "[old] set (1)/*.fasta", "--store-dir", "s"),
        status=2,
        says=(r"no file matches this pattern.*brackets.*'\[\[\]old\] set \(1\)/\*\.fasta'",),
    ),
]


@table(ROWS)
def test_row(row: Row, tmp_path: Path) -> None:
    row.run(tmp_path)
