"""The nearest neighbour: each protein gets the labels of the training protein that it is most similar to.

In: sequences as text. Out: a `Baseline`. Kept: nothing; files that MMseqs2 writes meanwhile are removed.

Among equally near neighbours the mean of the labels is taken. A neighbour must have a label of the task.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data.homology import program
from finetune.baselines.baseline import Baseline, Parts, Records, as_targets, by_labelled, constant
from finetune.baselines.features import letters, of_one_length
from finetune.labels.labels import Labels
from finetune.metrics.predictions import Predictions, rows_of
from finetune.tasks.objective import Objective

How = Literal["hamming", "alignment", "kmers"]
Similarities = Callable[[int, int], NDArray[np.float32]]
"""First and last number of some asked records -> (asked, training) similarities, -inf where there is none."""
K = 4
"""Length of the words that the fallback counts."""
_BLOCK_CELLS = 1 << 22
_SENSITIVE = ("-s", "7.5", "-e", "1e-3", "--max-seqs", "1000")


def nearest_neighbour(
    objective: Objective, labels: Labels, parts: Parts, sequences: Sequence[str], how: How | None = None
) -> Baseline:
    """Labels of the nearest training protein, of tasks of whole sequences.

    Args:
        objective: what is predicted.
        labels: of all records.
        parts: the validation part is not used.
        sequences: of all records.
        how: by the number of positions that differ, for sequences of one length; by the bit score of MMseqs2's
            alignments; or by shared words, which is an approximation. None takes the first of them that can be used.

    Raises:
        ValueError: the labels are of residues; sequences of several lengths are to be compared by position; or MMseqs2
            failed or is not installed.
    """
    began = time.perf_counter()
    if labels.positions is not None:
        raise ValueError(
            f"{objective.settings.name}: labels of residues have no nearest sequence; use windows of residues"
        )
    how = how or ("hamming" if of_one_length(sequences) else "alignment" if program.is_installed() else "kmers")
    find, description = _FINDERS[how]
    similar = find(sequences, parts.asked, parts.train)
    asked, train = rows_of(labels, parts.asked), rows_of(labels, parts.train)
    number = np.full(labels.num_records, -1)
    number[parts.asked] = np.arange(len(parts.asked))
    column = np.full(labels.num_records, -1)
    column[parts.train] = np.arange(len(parts.train))
    fallback = constant(objective, labels, parts).predictions.prediction
    targets = as_targets(objective, train.truth)
    prediction, found = fallback.copy(), np.zeros(len(asked), np.bool_)
    groups = [
        (outputs, rows, column[train.records[rows[0]]]) for outputs, rows in by_labelled(train, len(objective.outputs))
    ]
    wanted = number[asked.records]
    order = np.lexsort((wanted, asked.outputs))
    size = max(1, _BLOCK_CELLS // max(1, len(parts.train)))
    for start in range(0, len(parts.asked), size):
        block = similar(start, min(start + size, len(parts.asked)))
        for outputs, rows, columns in groups:
            theirs = block[:, columns]
            most = theirs.max(1, keepdims=True)
            nearest = ((theirs == most) & np.isfinite(most)).astype(np.float64)
            counts = np.maximum(nearest.sum(1), 1)
            for output, of_output in zip(outputs.tolist(), rows, strict=True):
                lo, hi = np.searchsorted(asked.outputs[order], (output, output + 1))
                mine = order[lo:hi]
                mine = mine[slice(*np.searchsorted(wanted[mine], (start, start + len(block))))]
                here = wanted[mine] - start
                has = np.isfinite(most[here, 0])
                # The sum is divided, not its terms: of n ones that is 1, and never more, as a probability must be.
                prediction[mine[has]] = ((nearest @ targets[of_output]).T / counts).T[here[has]]
                found[mine[has]] = True
    lacking = float(1 - found.mean()) if len(asked) else 0.0
    said = (
        f"; {lacking:.0%} of the labels have no neighbour, and get what the {_name(objective)} gives" if lacking else ""
    )
    return Baseline(
        "nearest neighbour", description + said, Predictions(asked, prediction), time.perf_counter() - began
    )


def _name(objective: Objective) -> str:
    return "mean" if objective.settings.type == "regression" else "prevalence"


def _hamming(sequences: Sequence[str], asked: Records, train: Records) -> Similarities:
    if not of_one_length(sequences):
        lengths = sorted({len(sequence) for sequence in sequences})
        raise ValueError(
            f"neighbours by position need sequences of one length; these have {lengths[0]} to {lengths[-1]} residues: "
            "compare them by alignment"
        )
    text = letters(sequences)
    text = text[:, (text != text[0]).any(0)]  # positions that never vary are equal in all pairs
    of_train = np.ascontiguousarray(text[train].T)

    def similarities(start: int, stop: int) -> NDArray[np.float32]:
        equal = np.zeros((stop - start, len(train)), np.float32)
        for mine, theirs in zip(text[asked[start:stop]].T, of_train, strict=True):
            equal += mine[:, None] == theirs
        return equal

    return similarities


def _by_words(sequences: Sequence[str], asked: Records, train: Records) -> Similarities:
    from scipy.sparse import csr_array

    words = [_words(sequences[record]) for record in (*asked.tolist(), *train.tolist())]
    distinct, column = np.unique(np.concatenate(words), return_inverse=True)
    sizes = np.array([len(each) for each in words])
    pointers = np.concatenate([[0], np.cumsum(sizes)])
    matrix = csr_array((np.ones(len(column), np.float32), column, pointers), (len(words), len(distinct)))
    theirs, of_theirs = matrix[len(asked) :].T.tocsr(), sizes[len(asked) :]

    def similarities(start: int, stop: int) -> NDArray[np.float32]:
        shared = (matrix[start:stop] @ theirs).toarray()
        either = sizes[start:stop, None] + of_theirs - shared
        return np.where(shared > 0, shared / np.maximum(either, 1), -np.inf).astype(np.float32)

    return similarities


def _words(sequence: str) -> NDArray[np.int64]:
    """The distinct words of K residues, as numbers; a sequence that is shorter is one word."""
    residues = np.frombuffer(sequence.encode(), np.uint8).astype(np.int64)
    if len(residues) <= K:
        return np.array([sum(int(letter) << 8 * place for place, letter in enumerate(residues))])
    each = np.lib.stride_tricks.sliding_window_view(residues, K)
    return np.unique(each @ (1 << 8 * np.arange(K)))


def _aligned(sequences: Sequence[str], asked: Records, train: Records) -> Similarities:
    with tempfile.TemporaryDirectory(prefix="zymogen-nearest-") as folder:
        program.version("the nearest neighbour by alignment")
        work = Path(folder)
        for name, records in (("asked", asked), ("train", train)):
            with (work / f"{name}.fasta").open("w", encoding="ascii") as file:
                file.writelines(f">{place}\n{sequences[record]}\n" for place, record in enumerate(records.tolist()))
        columns = ("--format-output", "query,target,bits")
        program.run(work, "easy-search", "asked.fasta", "train.fasta", "out.tsv", "tmp", *_SENSITIVE, *columns)
        lines = (work / "out.tsv").read_text("ascii").split()
    hits = np.array(lines, np.float64).reshape(-1, 3)
    hits = hits[np.argsort(hits[:, 0], kind="stable")]

    def similarities(start: int, stop: int) -> NDArray[np.float32]:
        block = np.full((stop - start, len(train)), -np.inf, np.float32)
        mine = hits[slice(*np.searchsorted(hits[:, 0], (start, stop)))]
        places = mine[:, 0].astype(np.int64) - start, mine[:, 1].astype(np.int64)
        np.maximum.at(block, places, mine[:, 2].astype(np.float32))
        return block

    return similarities


_FINDERS: dict[How, tuple[Callable[[Sequence[str], Records, Records], Similarities], str]] = {
    "hamming": (_hamming, "labels of the training sequences from which the fewest positions differ"),
    "alignment": (_aligned, "labels of the training sequence with the best alignment by MMseqs2, by bit score"),
    "kmers": (_by_words, f"labels of the training sequence that shares most words of {K} residues; approximate"),
}
