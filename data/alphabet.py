"""The protein alphabet: the 33 tokens of ESM-2, in its order, and which letters may become which token.

In: letters of a FASTA record as bytes. Out: token ids as ``uint8``. Nothing is kept.

The order is that of `facebook/esm2_*` (`vocab.txt`), so that embeddings move between the two without a permutation.
"""

import numpy as np
from numpy.typing import NDArray

TOKENS: tuple[str, ...] = (
    *("<cls>", "<pad>", "<eos>", "<unk>"),
    *"LAGVSERTIDPKQNFYMHWCXBUZO",
    *(".", "-", "<null_1>", "<mask>"),
)
"""Token text by id."""

CLS, PAD, EOS, UNK, MASK = (TOKENS.index(t) for t in ("<cls>", "<pad>", "<eos>", "<unk>", "<mask>"))

STANDARD_RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
"""The twenty amino acids of the standard genetic code."""

STANDARD_IDS: NDArray[np.uint8] = np.array([TOKENS.index(r) for r in STANDARD_RESIDUES], np.uint8)
"""Token ids of the twenty standard residues; a masked residue that is replaced at random draws from these."""

REFUSED = 255
"""The entry of `LETTER_IDS` for a byte that is not an amino acid letter."""


def _letter_ids() -> NDArray[np.uint8]:
    ids = np.full(256, REFUSED, np.uint8)
    for letter in "ACDEFGHIKLMNPQRSTVWYXBZUO":
        ids[ord(letter)] = ids[ord(letter.lower())] = TOKENS.index(letter)
    # J (leucine or isoleucine) is an IUPAC letter without a token in ESM, whose tokenizer reads it as <unk> as well.
    ids[ord("J")] = ids[ord("j")] = UNK
    return ids


LETTER_IDS: NDArray[np.uint8] = _letter_ids()
"""Token id of each byte value, shape (256,); `REFUSED` for what is not an IUPAC amino acid letter.

Lower case (soft-masked regions) is read as upper case. Gap and stop characters are refused, except for one ``*`` at the
end of a sequence, which readers drop.
"""


def _target_table() -> NDArray[np.bool_]:
    table = np.zeros(len(TOKENS), np.bool_)
    table[STANDARD_IDS] = True
    table[[TOKENS.index("U"), TOKENS.index("O")]] = True
    return table


IS_TARGET: NDArray[np.bool_] = _target_table()
"""Whether a token id may be selected for prediction, shape (33,).

True for the 22 residues that a ribosome can add to a protein. X, B, Z and <unk> mean that a residue is not known: a
model that predicts them learns about the sequencing, and runs of X are very easy targets, which lower the perplexity.
"""


FASTA_LETTERS: NDArray[np.uint8] = np.array([ord(token) if token.isalpha() else ord("X") for token in TOKENS], np.uint8)
"""The letter that stands for each token id in FASTA, shape (33,); X for a token that is not a letter."""


def decode(ids: NDArray[np.uint8]) -> str:
    """Token text of `ids` (any length), joined without separators."""
    return "".join(TOKENS[i] for i in ids)
