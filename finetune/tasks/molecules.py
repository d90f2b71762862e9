"""Molecules as SMILES: which columns hold them, and one spelling for each.

In: texts. Out: canonical SMILES. Kept: nothing. rdkit (https://rdkit.org) is imported where it is installed; without it
only equal texts are one molecule.
"""

import re
from collections.abc import Sequence
from contextlib import suppress

_NAME = re.compile(r"smiles", re.I)
_SMILES = re.compile(r"(?=.*[=#()\[\]@])(?:Cl|Br|[BCFINOPSbcnops*]|\[[A-Za-z0-9@+\-:*#]+\]|[0-9+\-()=#$/\\%.:~])+")
"""A molecule that has a bond, a branch or a bracket: elements of the organic subset, others in brackets."""
_SAMPLE, _MOST_OTHERS = 50, 0.5


def is_molecules(column: str, texts: Sequence[str]) -> bool:
    """Whether a column holds molecules: by its name, or because half of its first texts can be nothing else."""
    sample = texts[:_SAMPLE]
    return bool(_NAME.search(column)) or (
        bool(sample) and sum(map(bool, map(_SMILES.fullmatch, sample))) > _MOST_OTHERS * len(sample)
    )


def canonical_smiles(texts: Sequence[str]) -> list[str | None]:
    """The canonical SMILES of each text; None for one that is no molecule, and for all of them without rdkit."""
    with suppress(ImportError):
        from rdkit import Chem
        from rdkit.rdBase import BlockLogs

        with BlockLogs():  # rdkit writes a line for each text that is no molecule
            molecules = [Chem.MolFromSmiles(text) if text else None for text in texts]
        return [Chem.MolToSmiles(each) if each is not None else None for each in molecules]
    return [None] * len(texts)
