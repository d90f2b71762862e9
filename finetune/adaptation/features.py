"""Features: what a frozen encoder makes of every record, computed once and kept on disk.

In: an encoder's weights, the documents of a token store. Out: vectors by record or by residue. Kept: a folder for each
content, whole or not at all:

    features.bin    float32   (rows, D): one row for each record, or for each residue of the token store
    features.json   what they were computed from, their number, and the hash of features.bin

Its name is a hash of what decides the values: the weights' content, the store's fingerprint, how tokens are pooled, and
the linkers. Values are computed in float32, so that they do not depend on the
precision of a run.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.batches.collate import ResidueReader
from data.batches.packed import PlainContents, split_by_tokens
from data.order.plan import SPECIAL_TOKENS
from data.order.settings import BinSettings
from data.store import derived
from data.store.derived import remedy
from data.store.token_store import hash_of
from finetune.adaptation.vectors import Embedder, Pooling, windows_of
from pretrain.trained_model import TrainedModel, encoder_of
from zymogen.console.progress import ProgressBar
from zymogen.files.durable import new_dir

FORMAT = "zymogen.features/2"
_ARRAY, _FACTS = "features.bin", "features.json"
_GB = 10**9
_PART_TOKENS, _PART_RECORDS = 1 << 18, 4096
"""Tokens and records that are read together, about."""
_PART_BYTES = 32 << 20
"""Most bytes of vectors of residues that are in memory together, unless a few bins have more."""


@dataclass(frozen=True, slots=True)
class EncoderInputs:
    """The N records of a token store, each of which the encoder reads as a whole."""

    store: str
    """Fingerprint of the token store."""
    offsets: NDArray[np.uint64]
    """(N + 1,) where each record's residues start in the store."""
    linkers: NDArray[np.int64]
    """(N, 2) slots of the document from and up to which a linker lies, which is not pooled; (0, 0) without one."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,) tokens of each record, begin and end included."""
        return np.diff(self.offsets).astype(np.int64) + SPECIAL_TOKENS


class CachedFeatures:
    """Vectors by `LabelColumns.place`, without a gradient.

    Args:
        rows: what was pooled how -> ``(rows, D)`` float32, memory maps; at most one pooling of sequences.
    """

    def __init__(self, rows: Mapping[Pooling, NDArray[np.float32]]) -> None:
        self.rows = dict(rows)

    def sequence(self, places: Tensor) -> Tensor:
        """Vectors of records: ``(n,)`` int64 numbers of records to ``(n, D)`` float32 on their device."""
        (rows,) = (rows for pooling, rows in self.rows.items() if pooling != "residue")
        return _read(rows, places)

    def residue(self, places: Tensor) -> Tensor:
        """Vectors of residues: ``(n,)`` int64 indices in the token store to ``(n, D)`` float32 on their device."""
        return _read(self.rows["residue"], places)

    def of(
        self, pooling: Pooling, records: NDArray[np.int64], documents: EncoderInputs
    ) -> Iterator[NDArray[np.float32]]:
        """Vectors of some records or of their residues, as `vectors_of` computes them, in parts of ``(n, D)``."""
        rows, offsets = self.rows[pooling], documents.offsets.astype(np.int64)
        if pooling != "residue":
            yield rows[records]
            return
        for record in records.tolist():
            yield rows[offsets[record] : offsets[record + 1]]


def _read(rows: NDArray[np.float32], places: Tensor) -> Tensor:
    return torch.from_numpy(rows[places.cpu().numpy()]).to(places.device)


def cached_features(
    start: TrainedModel,
    documents: EncoderInputs,
    residues: ResidueReader,
    settings: BinSettings,
    poolings: Sequence[Pooling],
    folder: Path,
    cache_gb: float,
    *,
    device: torch.device | str = "cpu",
    on_each_node: Callable[[Callable[[], int]], int] = lambda work: work(),
) -> tuple[CachedFeatures | None, list[str]]:
    """The features of a frozen encoder, computed unless the folder has them; collective.

    Args:
        start: the encoder.
        documents: what it reads, none longer than a bin.
        residues: gives the tokens of the store; sample ids are numbers of records.
        settings: sizes of a bin.
        poolings: what is needed: one pooling of sequences, residues, or both.
        folder: holds a folder for each content.
        cache_gb: largest size of all together, in GB.
        device: where the encoder computes.
        on_each_node: does something on one rank of each node while the others wait, as `Ranks.on_each_node` does.

    Raises:
        ValueError: the cache is damaged or cannot be written.
    """
    counts = {pooling: _count(documents, pooling) for pooling in poolings}
    size = 4 * start.shape.dim * sum(counts.values())
    what = " and ".join(f"{n:,} {'residues' if of == 'residue' else 'proteins'}" for of, n in counts.items())
    title = f"features: {what} x {start.shape.dim} numbers, {size / _GB:.3g} GB"
    if size > cache_gb * _GB:
        line = f"{title}, more than adaptation.cache_gb = {cache_gb:g}: not kept, the encoder computes them each time"
        return None, [line]
    weights = start.content_hash()
    described = {pooling: _facts(start, weights, documents, pooling) for pooling in poolings}
    texts = {pooling: json.dumps(facts, sort_keys=True).encode() for pooling, facts in described.items()}
    places = {of: folder / f"features-{hashlib.sha256(text).hexdigest()[:16]}" for of, text in texts.items()}

    def made() -> int:
        missing = [pooling for pooling in poolings if not places[pooling].is_dir()]
        for pooling in missing:
            folder.mkdir(parents=True, exist_ok=True)
            with new_dir(places[pooling]) as building:
                _write(building, start, documents, residues, settings, described[pooling], torch.device(device))
        return len(missing)

    said = "computed" if on_each_node(made) else "as they were computed before"
    rows = {pooling: _opened(places[pooling], described[pooling]) for pooling in poolings}
    return CachedFeatures(rows), [f"{title}, {said}, in {folder}"]


def vectors_of(
    start: TrainedModel,
    documents: EncoderInputs,
    residues: ResidueReader,
    settings: BinSettings,
    pooling: Pooling,
    records: NDArray[np.int64],
    device: torch.device | str = "cpu",
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Vectors of some records or of their residues, in parts: numbers of rows ``(n,)``, and ``(n, D)``."""
    embedder = Embedder(encoder_of(start, torch.device(device)), (start.shape.layers,), pooling, autocast=False)
    lengths, in_store = documents.lengths[records], documents.offsets.astype(np.int64)
    contents = PlainContents(residues, settings)
    most = max(_PART_BYTES // (4 * start.shape.dim), 4 * settings.bin_tokens)
    for part in split_by_tokens(lengths, most if pooling == "residue" else _PART_TOKENS, _PART_RECORDS):
        of_part = records[part]
        windows = windows_of(lengths[part], int(lengths[part].max()))
        vectors = embedder(contents, of_part, windows, documents.linkers[of_part])[:, 0]
        rows = [np.arange(in_store[record], in_store[record + 1]) for record in of_part.tolist()]
        yield np.concatenate(rows) if pooling == "residue" else of_part, vectors


def _count(documents: EncoderInputs, pooling: Pooling) -> int:
    return int(documents.offsets[-1]) if pooling == "residue" else len(documents.linkers)


def _facts(start: TrainedModel, weights: str, documents: EncoderInputs, pooling: Pooling) -> dict[str, Any]:
    """What decides the values."""
    return {
        "format": FORMAT,
        "shape": asdict(start.shape),
        "weights": weights,
        "store": documents.store,
        "linkers": hashlib.sha256(np.ascontiguousarray(documents.linkers, "<i8").data).hexdigest(),
        "pooling": pooling,
        "rows": _count(documents, pooling),
        "width": start.shape.dim,
    }


def _opened(place: Path, facts: dict[str, Any]) -> NDArray[np.float32]:
    said = derived.read_json(place / _FACTS, ("hash",), place)
    if said != facts | {"hash": said["hash"]}:
        raise ValueError(f"{place / _FACTS} describes other features; {remedy(place)}")
    count = facts["rows"] * facts["width"]
    rows = derived.read_array(place / _ARRAY, "<f4", said["hash"], count)
    return rows.reshape(facts["rows"], facts["width"])


def _write(
    folder: Path,
    start: TrainedModel,
    documents: EncoderInputs,
    residues: ResidueReader,
    settings: BinSettings,
    facts: dict[str, Any],
    device: torch.device,
) -> None:
    path, pooling = folder / _ARRAY, facts["pooling"]
    rows = np.memmap(path, "<f4", "w+", shape=(facts["rows"], facts["width"]))
    every = np.arange(len(documents.linkers))
    with ProgressBar("computing what the frozen encoder gives", after_s=2.0):
        for places, vectors in vectors_of(start, documents, residues, settings, pooling, every, device):
            rows[places] = vectors
    rows.flush()
    del rows
    with path.open("rb", buffering=0) as file:
        content_hash = hash_of(file).hexdigest()
    (folder / _FACTS).write_text(json.dumps(facts | {"hash": content_hash}, indent=1) + "\n", encoding="utf-8")
