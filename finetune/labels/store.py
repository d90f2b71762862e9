"""The label store: the labels of all objectives on disk, beside the token store of their records.

In: labels, a token store. Out: the labels of some records, through memory maps. Kept: a folder at the place that
`data.store.derived` gives for the token store, written whole or not at all:

    labels-HASH/N-pointers.bin    uint64  (records + 1,) first label of each record, for the objective of number N
    labels-HASH/N-outputs.bin     (M,) output of each label, in as few bytes as they fit; none for one output
    labels-HASH/N-values.bin      float32 (M,)
    labels-HASH/N-censoring.bin   int8    (M,), if a label is censored
    labels-HASH/N-positions.bin   uint16 or uint32 (M,) or (M, 2), for labels of residues and pairs
    labels-HASH/N-replicates.bin  and N-spread.bin, float32, if labels are made of several measurements
    labels-HASH/linkers.bin       int32   (records, 2), if chains were joined
    labels-HASH/labels.json       format, fingerprint, size and hash of each file; written last

So a label that is missing has no bytes of its own, and whatever a table had in its place changes nothing here. HASH is
that of the content.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.store import derived
from data.store.derived import cache_dir, remedy
from data.store.token_store import TokenStore, new_hash
from finetune.labels.labels import EXACT, Labels, ranges
from zymogen.files.durable import new_dir

FORMAT = "zymogen.labels/3"
FACTS = "labels.json"


class LabelSlice(NamedTuple):
    """The labels of one objective and of some records, in the order of these records."""

    of: NDArray[np.int64]
    """(m,) index among the records that were asked for."""
    outputs: NDArray[np.int64]
    """(m,) output of the objective."""
    values: NDArray[np.float32]
    """(m,) as in `Labels`."""
    censoring: NDArray[np.int8]
    """(m,) `EXACT`, `BELOW` or `ABOVE`."""
    positions: NDArray[np.int64] | None
    """(m,) or (m, 2), as in `Labels`."""


def write(store: TokenStore, objectives: Mapping[str, Labels], linkers: NDArray[Any] | None = None) -> "LabelStore":
    """The label store of some objectives; it is written unless it is there.

    Args:
        store: finished token store of the records.
        objectives: labels of all records by the name of their objective, in the order of the objectives.
        linkers: (N, 2) first residue of the linker of each record's chains, and the one after its last; equal where
            there is none.

    Raises:
        ValueError: labels are not of the store's records; the store cannot be written, or is damaged.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for number, labels in enumerate(objectives.values()):
        arrays |= {f"{number}-{kind}.bin": array for kind, array in _files(labels).items()}
    if linkers is not None and (linkers[:, 1] > linkers[:, 0]).any():
        arrays["linkers.bin"] = linkers.astype("<i4")
    files = {
        name: {"dtype": array.dtype.str, "shape": list(array.shape), "hash": new_hash(array.tobytes()).hexdigest()}
        for name, array in arrays.items()
    }
    facts = {
        "format": FORMAT,
        "tokens": store.fingerprint,
        "records": store.num_records,
        "objectives": list(objectives),
        "files": files,
    }
    facts["fingerprint"] = new_hash(json.dumps(facts).encode()).hexdigest()
    folder = cache_dir(store, f"labels-{str(facts['fingerprint'])[:16]}")
    if not folder.is_dir():
        with new_dir(folder) as building:
            for name, array in arrays.items():
                array.tofile(building / name)
            (building / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    return LabelStore(folder, store.folder, store.store_dir)


class LabelStore:
    """A label store. It is pickled by its path.

    Args:
        folder: of the label store.
        tokens: folder of the token store of its records.
        store_dir: data.store_dir, to compare the hash of each file only once; None to compare it each time it is
            opened.

    Raises:
        ValueError: a file is missing, was cut or changed, or the token store is another.
    """

    def __init__(self, folder: Path, tokens: Path, store_dir: Path | None = None) -> None:
        self.folder, self._tokens, self._store_dir = folder, tokens, store_dir
        facts = derived.read_json(folder / FACTS, ("format", "fingerprint", "tokens", "files"), folder)
        stated = {name: value for name, value in facts.items() if name != "fingerprint"}
        if facts["format"] != FORMAT or new_hash(json.dumps(stated).encode()).hexdigest() != facts["fingerprint"]:
            raise ValueError(
                f"{folder / FACTS} differs from what was written, or is of another version; {remedy(folder)}"
            )
        store = TokenStore(tokens)
        if store.fingerprint != facts["tokens"]:
            raise ValueError(f"{folder} holds labels of other sequences than {tokens}; {remedy(folder)}")
        self._facts = facts
        self._maps = {
            name: np.asarray(
                derived.read_array(folder / name, of_file["dtype"], of_file["hash"], int(np.prod(of_file["shape"])))
            ).reshape(of_file["shape"])
            for name, of_file in facts["files"].items()
        }
        self._offsets = store.offsets

    def __reduce__(self) -> tuple[type["LabelStore"], tuple[Path, Path, Path | None]]:
        return type(self), (self.folder, self._tokens, self._store_dir)

    @property
    def fingerprint(self) -> str:
        """Hash of all labels, their objectives' names and the sequences that they are of."""
        return str(self._facts["fingerprint"])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the objectives, in their order."""
        return tuple(self._facts["objectives"])

    def labels(self, objective: int) -> Labels:
        """All labels of an objective, as they were written."""
        every = np.arange(len(self._offsets) - 1)
        found = self.of_records(objective, every)
        counts = np.bincount(found.of, minlength=len(every))
        replicates, spread = (self._maps.get(f"{objective}-{name}.bin") for name in ("replicates", "spread"))
        return Labels(
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            found.outputs.astype(np.int32),
            found.values,
            found.censoring if f"{objective}-censoring.bin" in self._maps else None,
            None if found.positions is None else found.positions.astype(np.int32),
            None if replicates is None else replicates.astype(np.int32),
            None if spread is None else np.array(spread),
        )

    def of_records(self, objective: int, records: NDArray[np.int64]) -> LabelSlice:
        """The labels of some records, record after record; the same one may be asked for twice."""
        pointers = self._maps[f"{objective}-pointers.bin"]
        of, index = ranges(pointers[records].astype(np.int64), pointers[records + 1].astype(np.int64))
        positions = self._maps.get(f"{objective}-positions.bin")
        outputs, censoring = (self._maps.get(f"{objective}-{name}.bin") for name in ("outputs", "censoring"))
        return LabelSlice(
            of,
            np.zeros(len(of), np.int64) if outputs is None else outputs[index].astype(np.int64),
            np.asarray(self._maps[f"{objective}-values.bin"][index]),
            np.full(len(of), EXACT, np.int8) if censoring is None else np.asarray(censoring[index]),
            None if positions is None else positions[index].astype(np.int64),
        )

    def first_residues(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) index of each record's first residue in the token store; of the number of records, the one after all."""
        return self._offsets[records].astype(np.int64)

    def linkers(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n, 2) first residue of the linker of each record's chains, and the one after its last; equal without one."""
        found = self._maps.get("linkers.bin")
        return np.zeros((len(records), 2), np.int64) if found is None else found[records].astype(np.int64)


def _files(labels: Labels) -> dict[str, NDArray[Any]]:
    """What is written of one objective: kind of file -> array."""
    rows: dict[str, NDArray[Any]] = {"pointers": labels.pointers.astype("<u8"), "values": labels.values.astype("<f4")}
    if labels.outputs.any():
        rows["outputs"] = _narrow(labels.outputs)
    if labels.censoring is not None:
        rows["censoring"] = labels.censoring.astype("i1")
    if labels.positions is not None:
        rows["positions"] = _narrow(labels.positions)
    if labels.replicates is not None and labels.spread is not None:
        rows["replicates"] = _narrow(labels.replicates)
        rows["spread"] = np.where(np.isnan(labels.spread), np.float32(np.nan), labels.spread).astype("<f4")
    return rows


def _narrow(values: NDArray[np.int32]) -> NDArray[Any]:
    """Numbers from 0 in as few bytes as they fit, little-endian."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))).newbyteorder("<"))
