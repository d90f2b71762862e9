"""The tables of tests/finetune/tables.toml: each column from a line of words, which the head of that file lists."""

import csv
import functools
import hashlib
import io
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.assays.messy_tables import LETTERS
from support.places import ROOT

CASES: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/finetune/tables.toml").read_text("utf-8"))["case"]
MOLECULES = ("CCO", "CC(=O)O", "c1ccccc1", "CC(C)N", "C1CCNCC1", "CC(=O)Nc1ccc(O)cc1", "OCC(O)CO", "N#Cc1ccccc1")


def write_case(case: dict[str, Any], folder: Path) -> Path:
    """Write the table of a case, and the FASTA file of its wild type where it has one; the path of the table."""
    path = folder / case["file"]
    generated = GeneratedTable(case)
    path.write_text(case["text"] if "text" in case else generated.text("\t" if path.suffix == ".tsv" else ","), "utf-8")
    if "wild_type" in case:
        (folder / "wt.fasta").write_text(f">wt\n{generated.wild_type(case['wild_type'])}\n")
    return path


class GeneratedTable:
    """The cells of a case. Every column is drawn by the names of the case and of the column alone."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.name, self.num_rows = case["name"], case.get("rows", 60)
        self.columns: dict[str, str | list[str]] = case.get("columns", {})

    def text(self, separator: str) -> str:
        """The table, as a file has it."""
        text = io.StringIO()
        writer = csv.writer(text, delimiter=separator, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(zip(*map(self.cells, self.columns), strict=True))
        return text.getvalue()

    @functools.cache  # noqa: B019 - a table lives as long as its test
    def cells(self, column: str) -> list[str]:
        """The cells of a column."""
        given = self.columns[column]
        if isinstance(given, list):
            return [given[row % len(given)] for row in range(self.num_rows)]
        first, *changes = [part.split() for part in given.split(" | ")]
        # What repeats is drawn once for all its rows.
        times = next((int(change[1]) for change in changes if change[0] == "repeat"), 1)
        cells = self._drawn(first, column, -(-self.num_rows // times))
        cells = [cells[row // times] for row in range(self.num_rows)]
        for change in changes:
            cells = self._changed(cells, change, column)
        return cells

    def wild_type(self, residues: int) -> str:
        """The wild type of the case."""
        return "".join(self._draw("wild type").choice(list(LETTERS), residues))

    def _draw(self, key: str) -> np.random.Generator:
        digest = hashlib.blake2b(f"{self.name}\0{key}".encode(), digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(digest))

    def _drawn(self, words: list[str], column: str, count: int) -> list[str]:
        word, rest, draw = words[0], words[1:], self._draw(column)
        numbers: dict[str, Callable[[], Any]] = {
            "normal": lambda: draw.normal(*map(float, rest or ("0", "1")), count),
            "uniform": lambda: draw.uniform(float(rest[0]), float(rest[1]), count),
            "lognormal": lambda: 10 ** draw.uniform(0, float(rest[0]), count),
            "copy": lambda: self._numbers(rest[0]),
            "log2": lambda: np.log2(self._numbers(rest[0])),
            "scaled": lambda: float(rest[1]) * self._numbers(rest[0]) + float(rest[2]),
            "sum": lambda: list(map(_sum, self._proteins()[:count])),
            "mean": lambda: [_sum(letters) / len(letters) for letters in self._proteins()[:count]],
            "distance": lambda: [_differing(letters, self.wild_type(len(letters))) for letters in self._proteins()],
            "plus": lambda: self._numbers(rest[0]) + self._numbers(rest[1]),
            "larger": lambda: np.maximum(self._numbers(rest[0]), self._numbers(rest[1])),
            "logratio": lambda: np.log2(self._numbers(rest[0]) / self._numbers(rest[1])),
            "ranked": lambda: np.argsort(np.argsort(self._numbers(rest[0]))),
            "longer": lambda: [len(letters) > int(rest[0]) for letters in self._proteins()],
            "near": lambda: self._numbers(rest[0]) + draw.normal(0, float(rest[1]), count),
        }
        if word in numbers:
            return [f"{float(value):.6g}" for value in numbers[word]()]
        if word in ("variant", "mutation"):
            found = [self._mutated(int(rest[0]), 1 + row % int((*rest, 1, 1)[1]), row) for row in range(count)]
            return [letters if word == "variant" else notation for letters, notation in found]
        if word in ("change", "changed"):
            pairs = enumerate(self.cells(rest[0]))
            return [self._change_of(letters, row, (*rest, "0")[1], word == "changed") for row, letters in pairs]
        texts: dict[str, Callable[[], list[str]]] = {
            "protein": lambda: [
                "".join(draw.choice(list(LETTERS), draw.integers(int(rest[0]), int(rest[-1]) + 1)))
                for _ in range(count)
            ],
            "wild": lambda: [self.wild_type(int(rest[0]))] * count,
            "integers": lambda: [str(x) for x in draw.integers(int(rest[0]), int(rest[1]) + 1, count)],
            "word": lambda: [rest[i] for i in draw.integers(0, len(rest), count)],
            "cycle": lambda: [rest[row % len(rest)] for row in range(count)],
            "fold": lambda: [str(x) for x in draw.permutation(np.arange(count) % int(rest[0]))],
            "smiles": lambda: [MOLECULES[i] for i in draw.integers(0, int(rest[0]), count)],
            "date": lambda: [
                f"{draw.integers(int(rest[0]), int(rest[1]) + 1)}-{draw.integers(1, 13):02}-{draw.integers(1, 29):02}"
                for _ in range(count)
            ],
            "row": lambda: [str(int(rest[0]) + row) for row in range(count)],
            "gapped": lambda: [str(x) for x in np.cumsum(draw.integers(1, 4, count))],
            "id": lambda: [f"{rest[0]}{1000 + row}" for row in range(count)],
            "along": lambda: [
                "".join(draw.choice(list(rest[0]), len(letters))) for letters in self._proteins()[:count]
            ],
            "length": lambda: [str(len(letters)) for letters in self._proteins()[:count]],
            "name": lambda: [rest[0]] * count,
        }
        return texts[word]()

    def _numbers(self, column: str) -> Any:
        return np.array(list(map(float, self.cells(column))))

    def _proteins(self) -> list[str]:
        words = ("protein", "variant")
        return self.cells(next(name for name, given in self.columns.items() if str(given).split()[0] in words))

    def _mutated(self, residues: int, count: int, row: int) -> tuple[str, str]:
        """A variant of the wild type, and its name: all rows differ, as long as there are substitutions."""
        letters, draw, notation = list(self.wild_type(residues)), self._draw(f"mutation {row}"), []
        for place in sorted({(row * 7 + each * 11) % residues for each in range(count)}):
            old = letters[place]
            others = [letter for letter in LETTERS if letter != old]
            letters[place] = others[(row // residues + int(draw.integers(0, 2)) * 9) % len(others)]
            notation.append(f"{old}{place + 1}{letters[place]}")
        return "".join(letters), ":".join(notation)

    def _change_of(self, letters: str, row: int, offset: str, is_whole: bool) -> str:
        """A substitution in the row's own sequence, numbered from 1 less the offset; or the whole sequence with it."""
        draw = self._draw(f"change {row}")
        place = int(draw.integers(0, len(letters)))
        new = draw.choice([letter for letter in LETTERS if letter != letters[place]])
        if is_whole:
            return f"{letters[:place]}{new}{letters[place + 1 :]}"
        number = place + 101 * (row % 7) if offset == "renumbered" else place + 1 - int(offset)
        return f"{letters[place]}{number}{new}"

    def _changed(self, cells: list[str], words: list[str], column: str) -> list[str]:
        word, rest = words[0], words[1:]
        if word == "at":  # one row
            return [" ".join(rest[1:]) if row == int(rest[0]) else cell for row, cell in enumerate(cells)]
        if word == "as":  # the row takes another one's cell
            return [cells[int(rest[1])] if row == int(rest[0]) else cell for row, cell in enumerate(cells)]
        if word == "blank":
            draw = self._draw(f"{column} blank")
            return ["" if draw.random() < float(rest[0]) else cell for cell in cells]
        if word == "of":  # one cell for each text of another column
            others = self.cells(rest[0])
            return [cells[others.index(other)] for other in others]
        if word in ("above", "below"):
            limit, sign = float(rest[0]), ">" if word == "above" else "<"
            past = [(float(cell) > limit) == (word == "above") for cell in cells]
            return [f"{sign}{rest[0]}" if is_past else cell for cell, is_past in zip(cells, past, strict=True)]
        if word == "piece":  # of a mutation: residue, number, residue
            return [re.findall(r"[A-Z]|-?\d+", cell)[int(rest[0])] for cell in cells]
        if word == "round":
            return [f"{float(cell):.{rest[0]}f}" for cell in cells]
        return {"repeat": cells, "suffix": [f"{cell}{' '.join(rest)}" for cell in cells]}[word]


def _differing(letters: str, wild_type: str) -> int:
    return sum(mine != its for mine, its in zip(letters, wild_type, strict=True))


def _sum(letters: str) -> float:
    """A sum over residues, such as a mass: one number for each letter."""
    return sum((7 * LETTERS.index(letter)) % 20 - 9.5 for letter in letters)
