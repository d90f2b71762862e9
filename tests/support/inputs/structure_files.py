"""Structures in the PDB format, with the atoms that contacts are read from."""

from typing import NamedTuple

import numpy as np

from data.alphabet import STANDARD_RESIDUES

_PLACES = {"N": (0.0, 0.0, 0.0), "CA": (1.4, 0.0, 0.0), "C": (2.5, 0.0, 0.0), "CB": (1.4, 1.5, 0.0)}
_NAMES = {
    **{"A": "ALA", "C": "CYS", "D": "ASP", "E": "GLU", "F": "PHE", "G": "GLY", "H": "HIS", "I": "ILE", "K": "LYS"},
    **{"L": "LEU", "M": "MET", "N": "ASN", "P": "PRO", "Q": "GLN", "R": "ARG", "S": "SER", "T": "THR", "V": "VAL"},
    **{"W": "TRP", "Y": "TYR"},
}


class Atoms(NamedTuple):
    """One residue; the N of the next one is bonded to its C if that lies 3.8 angstrom further along x."""

    name: str
    number: int
    at: tuple[float, float, float]
    chain: str = "A"
    hetero: bool = False
    atoms: tuple[str, ...] = ("N", "CA", "C", "CB")


def pdb_text(*models: list[Atoms]) -> str:
    """The text of a file."""
    lines: list[str] = []
    for number, residues in enumerate(models, 1):
        lines += [f"MODEL     {number:>4}"] if len(models) > 1 else []
        serial = 0
        for residue in residues:
            for atom in residue.atoms:
                if atom == "CB" and residue.name == "GLY":
                    continue
                serial += 1
                x, y, z = (a + b for a, b in zip(residue.at, _PLACES[atom], strict=True))
                record = "HETATM" if residue.hetero else "ATOM"
                lines.append(
                    f"{record:<6}{serial:>5}  {atom:<3} {residue.name:>3} {residue.chain}{residue.number:>4}    "
                    f"{x:8.3f}{y:8.3f}{z:8.3f}{1.0:6.2f}{0.0:6.2f}          {atom[0]:>2}"
                )
        lines += ["ENDMDL"] if len(models) > 1 else []
    return "\n".join([*lines, "END", ""])


def globule(residues: int, seed: int) -> list[Atoms]:
    """A protein of random letters whose residues lie at random in a ball that has a protein's density."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(residues, 3))
    radius = 2.6 * residues ** (1 / 3) * rng.random(residues) ** (1 / 3)
    places = directions / np.linalg.norm(directions, axis=1, keepdims=True) * radius[:, None]
    letters = rng.choice(list(STANDARD_RESIDUES), residues)
    return [
        Atoms(_NAMES[letter], number, (float(x), float(y), float(z)))
        for number, (letter, (x, y, z)) in enumerate(zip(letters, places, strict=True), 1)
    ]
