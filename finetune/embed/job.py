"""An embedding from its first part to the finished table, on every rank.

In: an encoder, a file of proteins, what is wanted. Out: the table, and a line about it. Kept: nothing but the table;
until it is whole, the folder `.NAME.embedding` beside it, with the token store of the proteins and the finished parts.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.batches.packed import BinSize, PlainContents
from data.corpus.reader import CorpusReader
from data.order.plan import SPECIAL_TOKENS
from data.settings import IngestSettings, LetterPolicy
from data.store.token_store import TokenStore
from finetune.adaptation.vectors import Embedder, Pooling
from finetune.embed.plan import EmbeddingPlan, TooLong, part_size, plan_of, record_id
from finetune.embed.table import FORMAT, EmbeddingParts, held, provenance, write_table
from pretrain.trained_model import TrainedModel, encoder_of
from zymogen.console.progress import ProgressLine
from zymogen.files.durable import write_error
from zymogen.trainer.engine.engine import Engine

_EVERY_S = 10.0
_REMEDY = "get the right to write there, or give another name"


@dataclass(frozen=True, kw_only=True)
class EmbeddingJob:
    """What is embedded, with what, and to where."""

    source: TrainedModel
    proteins: str
    """A file, URL or token store, as `data.sources` of a recipe names them."""
    out: Path
    pooling: Pooling
    layers: tuple[int, ...]
    dtype: str
    """Type of the numbers in the table: float32 or float16."""
    compute: str
    """What the encoder computes in: float32, or bfloat16 under autocast."""
    too_long: TooLong
    max_tokens: int
    """Longest document, begin and end token counted."""
    bin_tokens: int
    """Slots of one forward pass."""
    unknown_letters: LetterPolicy
    max_bad_fraction: float
    """Share of the records that may be left out as they are no proteins."""
    overwrites: bool

    @property
    def work(self) -> Path:
        """Folder of what is kept until the table is whole."""
        return self.out.with_name(f".{self.out.name}.embedding")

    def run(self, engine: Engine) -> str:
        """Embed; collective.

        Returns:
            A line for the console.

        Raises:
            ValueError: the proteins cannot be read or are too long; the table exists; a number is none, or above what
                float16 holds; the disk is full.
        """
        with self._held(engine):
            store = TokenStore(engine.on_main(self._store))
            facts = engine.on_main(lambda: self._facts(store))
            if engine.on_main(lambda: self._is_done(facts)):
                return f"{self.out}: it is whole already, from the same model, proteins and options"
            size = part_size(self.pooling, len(self.layers) * self.source.shape.dim, self.dtype, self.bin_tokens)
            plan = plan_of(store, self.max_tokens, self.too_long, *size, self.proteins)
            parts = self._parts(facts)
            engine.on_main(lambda: self._begin(parts))
            begun = time.monotonic()
            tokens, found = self._compute(engine, plan, parts)
            all_tokens, all_found = map(sum, zip(*engine.gather((tokens, found)), strict=True))
            seconds = time.monotonic() - begun
            by_residue = self.pooling == "residue"
            engine.on_main(lambda: write_table(self.out, plan, parts, self.layers, facts, by_residue=by_residue))
        return self._said(plan, all_tokens, all_found, seconds)

    @contextmanager
    def _held(self, engine: Engine) -> Iterator[None]:
        """Rank 0 holds the folder; afterwards it removes that, if the table is whole."""

        def made() -> None:
            with write_error(self.work, _REMEDY):
                self.work.mkdir(exist_ok=True)

        engine.on_main(made)
        with held(self.work, self.out) if engine.is_main else nullcontext():
            try:
                yield
            except ValueError:
                if engine.is_main and not any(self.work.glob("parts-*")):
                    shutil.rmtree(self.work, ignore_errors=True)
                raise
            if engine.is_main:
                shutil.rmtree(self.work, ignore_errors=True)

    def _store(self) -> Path:
        from data.corpus.stores import open_store

        limits = IngestSettings(max_bad_fraction=self.max_bad_fraction)
        return open_store((self.proteins,), self.unknown_letters, limits, self.work / "stores").folder

    def _facts(self, store: TokenStore) -> dict[str, Any]:
        """What decides the bytes of the table."""
        return {
            "format": FORMAT,
            "model": self.source.name,
            "shape": asdict(self.source.shape),
            "weights": self.source.content_hash(),
            "proteins": store.fingerprint,
            "headers": store.facts["files"]["headers.bin"]["hash"],
            "pooling": self.pooling,
            "layers": list(self.layers),
            "dtype": self.dtype,
            "compute": self.compute,
            "too_long": self.too_long,
            "max_tokens": self.max_tokens,
            "bin_tokens": self.bin_tokens,
        }

    def _is_done(self, facts: dict[str, Any]) -> bool:
        """Whether the table is there and is this one."""
        if not os.path.lexists(self.out) or self.overwrites:
            return False
        found = provenance(self.out)
        if found is not None and found == facts:
            return True
        differing = [] if found is None else [name for name in facts if found.get(name) != facts[name]]
        what = f"of other {', '.join(differing)}" if differing else "and is no embedding of this command"
        raise ValueError(f"{self.out} exists, {what}; give another name, or replace it with --overwrite")

    def _parts(self, facts: dict[str, Any]) -> EmbeddingParts:
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
        row = len(self.layers), self.source.shape.dim
        return EmbeddingParts(self.work / f"parts-{key}", row, np.dtype(self.dtype).newbyteorder("<"))

    def _begin(self, parts: EmbeddingParts) -> None:
        """Make the folder of the parts, and remove those of another embedding, which nobody continues."""
        with write_error(self.work, _REMEDY):
            for other in self.work.glob("parts-*"):
                if other != parts.folder:
                    shutil.rmtree(other, ignore_errors=True)
            parts.folder.mkdir(exist_ok=True)

    def _compute(self, engine: Engine, plan: EmbeddingPlan, parts: EmbeddingParts) -> tuple[int, int]:
        """Write this rank's parts; the tokens that were computed, and the number of parts that were there."""
        encoder = encoder_of(self.source, engine.device)
        embedder = Embedder(encoder, self.layers, self.pooling, self.compute == "bfloat16")
        longest = np.minimum(plan.residues + SPECIAL_TOKENS, self.max_tokens)
        contents = PlainContents(CorpusReader([plan.store.folder]), BinSize.holding(longest, self.bin_tokens))
        mine = list(enumerate(plan.parts))[engine.data_rank :: engine.data_world_size]
        tokens, found, begun, said = 0, 0, time.monotonic(), time.monotonic()
        with ProgressLine(len(mine), engine.is_main) as line:
            for done, (number, part) in enumerate(mine):
                rows = int(plan.residues[part].sum()) if self.pooling == "residue" else part.stop - part.start
                if parts.is_whole(number, rows):
                    found += 1
                    continue
                windows = plan.windows(part)
                vectors = embedder(contents, np.arange(part.start, part.stop), windows)
                self._require_numbers(plan, part, vectors)
                with write_error(parts.folder, _REMEDY):
                    parts.write(number, vectors)
                del vectors  # before those of the next part are there
                tokens += int(windows.length.sum())
                if time.monotonic() > said + _EVERY_S:
                    said = time.monotonic()
                    rate = tokens / (said - begun)
                    line.update(done + 1, f"embedding: part {done + 1:,} of {len(mine):,}, {rate:,.0f} tokens/s")
        return tokens, found

    def _require_numbers(
        self, plan: EmbeddingPlan, part: slice, vectors: "np.ndarray[Any, np.dtype[np.float32]]"
    ) -> None:
        limit = float(np.finfo(self.dtype).max)
        largest = np.maximum(vectors.max(axis=(0, 2)), -vectors.min(axis=(0, 2)))
        if np.all(largest <= limit):  # False for NaN
            return
        row = int(np.flatnonzero(~(np.abs(vectors).max(axis=(1, 2)) <= limit))[0])
        if self.pooling == "residue":
            row = int(np.searchsorted(np.cumsum(plan.residues[part]), row, side="right"))
        name = record_id(plan.store, part.start + row)
        layers = [layer for layer, most in zip(self.layers, largest.tolist(), strict=True) if not most <= limit]
        if np.isfinite(vectors).all():
            raise ValueError(
                f"{self.proteins}: {name!r} has a number of {largest.max():.3g} in layer {layers[0]}, and float16 ends "
                f"at {limit:,.0f}; write --dtype float32"
            )
        raise ValueError(
            f"{self.source.origin} gives something that is not a number for {name!r} in layer {layers[0]}; its weights "
            "are damaged, or its training diverged"
        )

    def _said(self, plan: EmbeddingPlan, tokens: int, found: int, seconds: float) -> str:
        there = f"; {found:,} of {len(plan.parts):,} parts were there" if found else ""
        rate = f", {tokens / seconds:,.0f} tokens/s" if tokens else ""
        return (
            f"{self.out}: {len(plan.residues):,} sequences{there}; {tokens:,} tokens in {seconds:,.1f} s{rate}, "
            f"computed in {self.compute}"
        )
