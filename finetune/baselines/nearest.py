"""The nearest neighbour: each protein gets the labels of the training protein that it is most similar to.

In: sequences as text, and what finds relatives among them. Out: a `TaskBaseline`. Kept: nothing.

Among equally near neighbours the mean of the labels is taken. A neighbour must have a label of the task.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from data.homology.mmseqs import why_not_installed
from data.homology.relatives import SearchHits
from finetune.baselines.baseline import PartRecords, Records, TaskBaseline, by_labelled, constant, to_predictions
from finetune.baselines.features import letters, of_one_length
from finetune.labels.labels import Labels
from finetune.metrics.predictions import LabelPredictions, by_output, label_rows
from finetune.tasks.task import Task

Search = Callable[[Records, Records], SearchHits]
"""Asked records, training records -> pairs of relatives, such as `data.homology.relatives.hits` of one store."""
Similarities = Callable[[int, int], NDArray[np.float32]]
"""First and last number of some asked records -> (asked, training) similarities, -inf where there is none."""
_BLOCK_CELLS = 1 << 22
_BY_ALIGNMENT = "labels of the training sequence with the best alignment by MMseqs2, by bit score"
_BY_WORDS = "labels of the training sequence that shares most words with it; approximate, as "


def nearest_neighbour(
    objective: Task, labels: Labels, parts: PartRecords, sequences: Sequence[str], search: Search
) -> TaskBaseline:
    """Labels of the nearest training protein, of tasks of whole sequences.

    Args:
        objective: what is predicted.
        labels: of all records.
        parts: the validation part is not used.
        sequences: of all records.
        search: finds relatives of sequences of several lengths. Those of one length are compared by the number of
            positions that differ.

    Raises:
        ValueError: MMseqs2 failed.
    """
    began = time.perf_counter()
    if of_one_length(sequences):
        similar = _hamming(sequences, parts.asked, parts.train)
        description = "labels of the training sequences from which the fewest positions differ"
    else:
        similar = _of_hits(search(parts.asked, parts.train), len(parts.train))
        description = _BY_WORDS + why_not_installed() if why_not_installed() else _BY_ALIGNMENT
    asked, train = label_rows(labels, parts.asked), label_rows(labels, parts.train)
    number = np.full(labels.num_records, -1)
    number[parts.asked] = np.arange(len(parts.asked))
    column = np.full(labels.num_records, -1)
    column[parts.train] = np.arange(len(parts.train))
    fallback = constant(objective, labels, parts)
    targets = to_predictions(objective, train.truth)
    prediction, found = fallback.predictions.prediction.copy(), np.zeros(len(asked), np.bool_)
    groups = [
        (outputs, rows, column[train.records[rows[0]]]) for outputs, rows in by_labelled(train, len(objective.outputs))
    ]
    wanted, of_outputs = number[asked.records], by_output(asked, len(objective.outputs))
    size = max(1, _BLOCK_CELLS // max(1, len(parts.train)))
    for start in range(0, len(parts.asked), size):
        block = similar(start, min(start + size, len(parts.asked)))
        for outputs, rows, columns in groups:
            theirs = block[:, columns]
            most = theirs.max(1, keepdims=True)
            nearest = ((theirs == most) & np.isfinite(most)).astype(np.float64)
            counts = np.maximum(nearest.sum(1), 1)
            for output, of_output in zip(outputs.tolist(), rows, strict=True):
                mine = of_outputs[output]
                mine = mine[slice(*np.searchsorted(wanted[mine], (start, start + len(block))))]
                here = wanted[mine] - start
                has = np.isfinite(most[here, 0])
                # The sum is divided, not its terms: of n ones that is 1, and never more, as a probability must be.
                prediction[mine[has]] = ((nearest @ targets[of_output]).T / counts).T[here[has]]
                found[mine[has]] = True
    lacking = float(1 - found.mean()) if len(asked) else 0.0
    said = f"; {lacking:.0%} of the labels have no neighbour, and get what the {fallback.name} gives" if lacking else ""
    return TaskBaseline(
        "nearest neighbour", description + said, LabelPredictions(asked, prediction), time.perf_counter() - began
    )


def _hamming(sequences: Sequence[str], asked: Records, train: Records) -> Similarities:
    text = letters(sequences)
    text = text[:, (text != text[0]).any(0)]  # positions that never vary are equal in all pairs
    of_train = np.ascontiguousarray(text[train].T)

    def similarities(start: int, stop: int) -> NDArray[np.float32]:
        equal = np.zeros((stop - start, len(train)), np.float32)
        for mine, theirs in zip(text[asked[start:stop]].T, of_train, strict=True):
            equal += mine[:, None] == theirs
        return equal

    return similarities


def _of_hits(hits: SearchHits, num_train: int) -> Similarities:
    def similarities(start: int, stop: int) -> NDArray[np.float32]:
        block = np.full((stop - start, num_train), -np.inf, np.float32)
        mine = slice(*np.searchsorted(hits.query, (start, stop)))
        np.maximum.at(block, (hits.query[mine] - start, hits.target[mine]), hits.score[mine])
        return block

    return similarities
