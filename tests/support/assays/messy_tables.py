"""Tables as people have them, written by a test: each a function of a folder that returns the arguments of a look."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
WILD = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAV"


def proteins(count: int, seed: int = 0, least: int = 30, most: int = 60) -> list[str]:
    draw = np.random.default_rng(seed)
    return ["".join(draw.choice(list(LETTERS), draw.integers(least, most))) for _ in range(count)]


def numbers(count: int, seed: int = 1) -> list[float]:
    return [round(float(x), 3) for x in np.random.default_rng(seed).normal(50, 10, count)]


def saved(folder: Path, text: str, encoding: str = "utf-8", name: str = "table.csv") -> list[str]:
    (folder / name).write_text(text, encoding)
    return [str(folder / name)]


def lines(header: str, *columns: list[object], sep: str = ",") -> str:
    return "\n".join([header, *(sep.join(map(str, row)) for row in zip(*columns, strict=True))]) + "\n"


def blat_like(folder: Path) -> list[str]:
    draw, rows = np.random.default_rng(3), []
    for place in range(2, 42):
        for new in draw.choice([x for x in LETTERS if x != WILD[place]], 3, replace=False):
            a, b = draw.normal(0, 1, 2)
            rows.append(
                (len(rows), len(rows), f"{WILD[place]}{place + 26}{new}", a, b, a + 0.1, a - 0.1, b, b, a * 2, -a)
            )
    (folder / "wt.fasta").write_text(f">wt\n{WILD}\n")
    header = ",Unnamed: 0,mutant,0,39,0_1,0_2,39_1,39_2,esm1v_1,mutation_effect_prediction_vae"
    text = "\n".join([header, *(",".join(f"{x}" for x in row) for row in rows)])
    return [*saved(folder, text), "--wild-type", str(folder / "wt.fasta")]


def two_headers(folder: Path) -> list[str]:
    return saved(folder, "sequence,kcat,Tm\n,1/s,°C\n" + lines("", proteins(60), numbers(60), numbers(60, 2))[1:])


def forty_rows(folder: Path) -> list[str]:
    return saved(folder, lines("sequence,stability", proteins(40), numbers(40)))


def two_chains(folder: Path) -> list[str]:
    return saved(
        folder,
        lines("id,heavy,light,affinity", [f"ab{x}" for x in range(50)], proteins(50), proteins(50, 7), numbers(50)),
    )


def longer_than_the_model(folder: Path) -> list[str]:
    found = proteins(50)
    found[7] = "".join(proteins(40, 9))
    return saved(folder, lines("sequence,stability", found, numbers(50)))


def worse_dump(folder: Path) -> list[str]:
    """Windows letters, a blank column without a name, words among numbers, grades, a constant."""
    found, values = proteins(70), list[object](numbers(70))
    values[4], values[8] = "no expression", "aggregated"
    grades = [("low", "medium", "high")[row % 3] for row in range(70)]
    text = lines(
        "Größe;;Protein sequence;Titer [mg/L];Grade;Bemerkung",
        *([["x"] * 70, [""] * 70, found, values, grades, [f"n{x}" for x in range(70)]]),
        sep=";",
    )
    return saved(folder, text, "cp1252")


def worse_merge(folder: Path) -> list[str]:
    """Two tables pasted together: DNA beside protein, one name twice, spellings of yes, a unit in the cells."""
    found = proteins(60)
    dna = ["".join(np.random.default_rng(row).choice(list("ACGT"), 90)) for row in range(60)]
    binds = [("TRUE", "false", "True", "FALSE")[row % 4] for row in range(60)]
    cells = [f"{x} nM" for x in 10 ** np.random.default_rng(5).uniform(0, 4, 60)]
    text = lines("clone,DNA,translated_seq,binds,KD,KD,cluster", [f"c{x}" for x in range(60)], dna, found, binds, cells,
                 [""] * 60, [f"f{x % 20}" for x in range(60)])  # fmt: skip
    return saved(folder, text)


def worse_residues(folder: Path) -> list[str]:
    """Residue labels of some rows, a split with too many words, unknown letters, rows without a protein."""
    found = proteins(60)
    labels = ["".join("HEC"[(i + row) % 3] for i in range(len(x))) for row, x in enumerate(found)]
    labels[5] = ""
    found[9] = found[9][:5] + "?" + found[9][6:]
    found[11], labels[11] = "", ""
    parts = [("train", "train", "train", "valid", "test")[row % 5] for row in range(60)]
    return saved(folder, lines("protein\tss\tsplit\tlength", found, labels, parts, [len(x) for x in found], sep="\t"))


def worse_notebook(folder: Path) -> list[str]:
    """Lines above the header, bounds and blanks under decimal commas, replicates with units, a summary as last row.

    Beside them names that mislead: a molecule's name, a short constant under 'protein_dataset', how often 'IC50 n'.
    """
    found, tm = proteins(60), numbers(60)
    found[4] = found[4][:20] + " " + found[4][20:].lower()
    ic50 = [f"{x:.1f}".replace(".", ",") for x in 10 ** np.random.default_rng(5).uniform(0, 4, 60)]
    ic50[2], ic50[5], ic50[9] = "> 10000", "< 0,1", "n.d."
    first, second = ([f"{x + shift:.1f}".replace(".", ",") for x in tm] for shift in (0.0, 0.4))
    first[7], second[8] = "no transition", ""
    smiles = [f"CC(=O)N{'C' * (row % 7)}c1ccccc1" for row in range(60)]
    header = "Clone;Sequence;IC50 (nM);IC50 n;Tm1 [°C];Tm2 [°C];molecule_name;compound;protein_dataset;Run date"
    text = lines(
        header,
        *([f"c{row}" for row in range(60)], found, ic50, [1 + row % 3 for row in range(60)], first, second),
        *([f"Kinase {row}" for row in range(60)], smiles, ["metz"] * 60),
        [f"{1 + row % 28:02}.{1 + row % 12:02}.2024" for row in range(60)],
        sep=";",
    )
    above = "Project Zeus;;;;;;;;;\nexported on 12/05/2024;;;;;;;;;\n"
    return saved(folder, f"{above}{text};;;;;;;;;\nMean;;532,1;;60,2;60,1;;;;\n", "utf-8-sig")


TABLES: dict[str, Callable[[Path], list[str]]] = {
    each.__name__: each
    for each in (
        *(blat_like, two_headers, forty_rows, two_chains, longer_than_the_model),
        *(worse_dump, worse_merge, worse_residues, worse_notebook),
    )
}
