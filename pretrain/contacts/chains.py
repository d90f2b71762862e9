"""Chains of structure files: what a model reads of them, and which of their residues touch.

In: mmCIF and PDB files, plain or gzipped. Out: `Chain`s, one for each protein chain of a file's first model. Nothing is
kept.

Both formats are read by the authors' numbers, so that they give one chain. A residue that a file lacks is an X, without
a place: where two neighbours are not bonded, the numbers between theirs say how many are missing.
"""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from Bio.Data.PDBData import protein_letters_3to1
from Bio.PDB.MMCIFParser import FastMMCIFParser
from Bio.PDB.PDBExceptions import PDBConstructionException
from Bio.PDB.PDBParser import PDBParser
from numpy.typing import NDArray

CONTACT = 8.0
"""Residues nearer than this are in contact, in angstrom between their CB atoms (CA of glycine)."""

_BONDED = 2.0
"""Largest distance of a C from the N that follows it in the chain, in angstrom; a peptide bond has 1.33."""
_MOST_MISSING = 10_000
"""Most residues that a chain may lack. More is a mistake in its numbers: the longest proteins have some 35,000."""
_PARSERS: dict[str, Any] = {".cif": FastMMCIFParser, ".mmcif": FastMMCIFParser, ".pdb": PDBParser, ".ent": PDBParser}
_LETTERS: dict[str, str] = {**protein_letters_3to1, "UNK": "X"}
_MODIFIED = {"MSE": "M", "SEC": "U", "PYL": "O"}
"""Residues that files list as HETATM and that are part of the chain: selenomethionine, and two with letters."""


@dataclass(frozen=True, eq=False, slots=True)
class Chain:
    """One protein chain."""

    name: str
    """Name of its file and of the chain, such as "1A8O_A"."""
    residues: str
    """Its letters; X where the file lacks the residue, or does not know it."""
    places: NDArray[np.float32]
    """(residues, 3) CB atom (CA of glycine) in angstrom; NaN where the file has none."""

    @property
    def is_resolved(self) -> NDArray[np.bool_]:
        """(residues,) whether the place of each residue is known."""
        return np.asarray(np.isfinite(self.places).all(1), np.bool_)

    @property
    def contacts(self) -> NDArray[np.bool_]:
        """(residues, residues) whether two residues are nearer than `CONTACT`; not where a place is unknown."""
        places = self.places.astype(np.float64)
        squares = np.zeros((len(places),) * 2)
        for axis in places.T:  # one at a time: all three at once would take three times the memory
            squares += (axis[:, None] - axis) ** 2
        near: NDArray[np.bool_] = squares < CONTACT**2  # NaN is not
        return near


def files_of(path: Path) -> list[Path]:
    """The structure files of a folder, by name; or the one file.

    Raises:
        ValueError: there are none.
    """
    if path.is_file():
        _parser(path)
        return [path]
    found = sorted(each for each in path.iterdir() if _kind(each) in _PARSERS) if path.is_dir() else []
    if not found:
        kinds = ", ".join(sorted(_PARSERS))
        what = "holds no structure" if path.is_dir() else "does not exist"
        raise ValueError(f"{path} {what}; give a folder of structures: files that end in {kinds}, also with .gz")
    return found


def chains_of(path: Path) -> list[Chain]:
    """The protein chains of one file's first model, in its order; without residues of a protein there are none.

    Raises:
        ValueError: it cannot be read, or holds no model, or by its numbers a chain lacks more than 10,000 residues.
    """
    parser = _parser(path)
    name = path.name.removesuffix(".gz").rpartition(".")[0]
    opens: Callable[..., IO[str]] = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opens(path, "rt", encoding="utf-8", errors="replace") as file:
            structure = parser(QUIET=True).get_structure(name, file)
        model = next(iter(structure), None)
    except (OSError, EOFError, ValueError, KeyError, PDBConstructionException) as error:
        raise ValueError(f"{path} cannot be read as a structure: {error}; copy or download it again") from error
    if model is None:
        raise ValueError(f"{path} holds no atoms; give a file of a structure with coordinates")
    found = (_chain(path, f"{name}_{chain.id}".removesuffix("_ "), chain) for chain in model)
    return [chain for chain in found if chain is not None]


def _kind(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _parser(path: Path) -> Any:
    try:
        return _PARSERS[_kind(path)]
    except KeyError:
        kinds = ", ".join(sorted(_PARSERS))
        raise ValueError(f"{path} is no structure; its name must end in one of {kinds}, also with .gz") from None


def _chain(path: Path, name: str, chain: Any) -> Chain | None:
    letters: list[str] = []
    places: list[NDArray[np.float32]] = []
    unknown = np.full(3, np.nan, np.float32)
    previous: Any = None
    num_missing = 0
    for residue in chain:
        letter = _letter(residue)
        if letter is None:
            continue
        missing = _missing(previous, residue) if previous is not None else 0
        num_missing += missing
        if num_missing > _MOST_MISSING:
            raise ValueError(
                f"{path}: chain {chain.id!r} lacks {num_missing:,} residues, by the numbers up to residue "
                f"{residue.id[1]}; at most {_MOST_MISSING:,} may be missing: renumber the chain, or leave the file out"
            )
        letters += "X" * missing + letter
        places += [unknown] * missing
        atom = "CA" if residue.resname == "GLY" else "CB"
        places.append(residue[atom].coord if atom in residue else unknown)
        previous = residue
    return Chain(name, "".join(letters), np.array(places, np.float32)) if letters else None


def _letter(residue: Any) -> str | None:
    """The letter of a residue; None for nucleotides, ligands and water."""
    name = residue.resname.strip()
    if residue.id[0].strip():
        return _MODIFIED.get(name)
    return _LETTERS.get(name) or _MODIFIED.get(name)


def _missing(previous: Any, residue: Any) -> int:
    """How many residues are missing between two that follow each other in a file."""
    if "C" in previous and "N" in residue and previous["C"] - residue["N"] < _BONDED:
        return 0
    return max(0, int(residue.id[1] - previous.id[1]) - 1)
