"""What a recipe says about data: sources, how they are read, split, curriculum, bins, masking and loading."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from data.recipe.setting import IDENTITY, OPERATIONAL, require, setting

LetterPolicy = Literal["refuse", "count"]
SampleBy = Literal["sequence", "cluster"]
SourceContent = Literal["protein", "any"]
Composition = Literal["packed", "bucketed"]


def _require_stages(name: str, stages: tuple[tuple[int, float], ...]) -> None:
    ends = [end for end, _ in stages]
    require(
        all(a < b for a, b in pairwise([0, *ends])),
        name,
        [list(stage) for stage in stages],
        "each stage is [tokens at which it ends, value], with ends that are above 0 and rise",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskSettings:
    """Corruption of the input for masked language modelling (Devlin et al. 2019, arXiv:1810.04805)."""

    select_prob: float = setting(IDENTITY, "share of residues selected as targets", unit="probability", default=0.15)
    mask_prob: float = setting(IDENTITY, "share of targets shown as <mask>", unit="probability", default=0.8)
    random_prob: float = setting(
        IDENTITY, "share of targets shown as a random residue", unit="probability", default=0.1
    )
    select_stages: tuple[tuple[int, float], ...] = setting(
        IDENTITY,
        "other select_prob before: [[tokens at which a stage ends, select_prob], ...]; select_prob holds behind them",
        default=(),
    )

    def __post_init__(self) -> None:
        require(0.0 < self.select_prob <= 1.0, "data.mask.select_prob", self.select_prob, "it must lie in (0, 1]")
        for name in ("mask_prob", "random_prob"):
            require(
                0.0 <= getattr(self, name) <= 1.0, f"data.mask.{name}", getattr(self, name), "it must lie in [0, 1]"
            )
        if self.mask_prob + self.random_prob > 1.0 + 1e-12:
            raise ValueError(
                f"data.mask.mask_prob {self.mask_prob} + random_prob {self.random_prob} exceed 1: "
                "what is left of 1 is the share of targets shown as they are"
            )
        _require_stages("data.mask.select_stages", self.select_stages)
        for _, prob in self.select_stages:
            require(0.0 < prob <= 1.0, "a probability of data.mask.select_stages", prob, "it must lie in (0, 1]")


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestSettings:
    """How sources are read into a token store, and what they may not exceed."""

    max_residues: int = setting(
        OPERATIONAL, "longest protein; a longer record is a bad one", unit="residues", default=1_000_000
    )
    max_header_bytes: int = setting(
        OPERATIONAL, "longest header line; a longer one makes a bad record", unit="bytes", default=65_536
    )
    max_line_bytes: int = setting(
        OPERATIONAL, "longest line of a text file; a longer one ends the build", unit="bytes", default=64 << 20
    )
    max_inflation: float = setting(
        OPERATIONAL, "most bytes that one compressed byte may become, over a whole source", unit="ratio", default=250.0
    )
    max_source_bytes: int = setting(
        OPERATIONAL, "most bytes of one source, decompressed", unit="bytes", default=1 << 44
    )
    max_bad_fraction: float = setting(
        OPERATIONAL,
        "share of records that may be bad; each is written to rejected.jsonl of the store",
        unit="fraction",
        default=0.0,
    )
    content: SourceContent = setting(
        OPERATIONAL,
        "'protein': refuse a source that begins with nucleotides, three-letter codes, PIR or an alignment; 'any': take "
        "its letters for amino acids all the same",
        default="protein",
    )
    processes: int = setting(OPERATIONAL, "sources that are read at the same time", unit="processes", default=1)

    def __post_init__(self) -> None:
        for name in ("max_residues", "max_header_bytes", "max_line_bytes", "max_source_bytes", "processes"):
            require(getattr(self, name) >= 1, f"data.ingest.{name}", getattr(self, name), "it must be at least 1")
        require(self.max_residues < 1 << 31, "data.ingest.max_residues", self.max_residues, "it must be below 2**31")
        require(self.max_inflation >= 1.0, "data.ingest.max_inflation", self.max_inflation, "it must be at least 1")
        require(
            0.0 <= self.max_bad_fraction < 1.0,
            "data.ingest.max_bad_fraction",
            self.max_bad_fraction,
            "it must lie in [0, 1)",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusSettings:
    """One corpus: what is read, and what of it is drawn."""

    sources: tuple[str, ...] = setting(
        OPERATIONAL,
        "files, globs, URLs or stores: FASTA (.gz .bgz .zst), UniProt .xml and .dat, GenBank, Stockholm, Parquet, CSV, "
        "JSON, 'datasets://NAME', or 'synthetic:SEED' for the embedded corpus",
        default=(),
    )
    clusters: str | None = setting(
        OPERATIONAL,
        "TSV of (cluster, record id) as MMseqs2 writes it, or UniProt's idmapping_selected.tab; without it, only equal "
        "sequences share a cluster",
        default=None,
    )
    split_identity: float | None = setting(
        IDENTITY,
        "cluster with MMseqs2 at this sequence identity instead of naming clusters",
        unit="fraction",
        default=None,
    )
    sample_by: SampleBy = setting(
        IDENTITY,
        "'sequence': every record once a pass; 'cluster': one member of every cluster, chosen anew each pass",
        default="sequence",
    )
    exclude: str | None = setting(
        OPERATIONAL, "table of record ids that never train, as `python -m data decontaminate` writes it", default=None
    )
    streaming: bool = setting(
        IDENTITY, "train while the store is being built: the first pass in the order of the sources", default=False
    )

    def __post_init__(self) -> None:
        if self.clusters is not None and self.split_identity is not None:
            raise ValueError(
                f"clusters is {self.clusters!r} and split_identity is {self.split_identity}: two ways to cluster one "
                "corpus; give one of them"
            )
        if self.split_identity is not None:
            require(0.0 < self.split_identity <= 1.0, "split_identity", self.split_identity, "it must lie in (0, 1]")
        if self.streaming:
            for name, needs in (
                ("clusters", None),
                ("split_identity", None),
                ("exclude", None),
                ("sample_by", "sequence"),
            ):
                if getattr(self, name) != needs:
                    raise ValueError(
                        f"streaming is true and {name} is {getattr(self, name)!r}: that needs the whole corpus before "
                        "the first step; leave one of them out"
                    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedCorpus(CorpusSettings):
    """One corpus of a mixture."""

    weight: int = setting(IDENTITY, "places in the order that go to it, relative to the other weights", default=1)

    def __post_init__(self) -> None:
        CorpusSettings.__post_init__(self)
        require(bool(self.sources), "sources of data.mixture", list(self.sources), "name at least one")
        require(1 <= self.weight <= 1_000_000, "weight of data.mixture", self.weight, "it must lie in 1..1,000,000")
        require(not self.streaming, "streaming of data.mixture", True, "a mixture is drawn from finished stores")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSettings(CorpusSettings):
    """Everything between files and batches. A corpus itself is identified by the fingerprint of its content."""

    mixture: tuple[MixedCorpus, ...] = setting(
        IDENTITY, "corpora drawn by weight, in place of data.sources: tables [[data.mixture]]", default=()
    )
    validation_fraction: float = setting(
        IDENTITY, "share of clusters held out for validation", unit="fraction", default=0.005
    )
    unknown_letters: LetterPolicy = setting(
        IDENTITY, "letters outside the alphabet: 'refuse' the record, or read as <unk> and 'count'", default="refuse"
    )
    crop_tokens: int = setting(
        IDENTITY, "longest document; a longer protein gives a random crop", unit="tokens", default=1024
    )
    curriculum: tuple[tuple[int, int], ...] = setting(
        IDENTITY,
        "shorter crops before: [[tokens at which a stage ends, crop_tokens], ...]; crop_tokens holds behind them",
        default=(),
    )
    composition: Composition = setting(
        IDENTITY, "'packed': lengths mixed in every bin; 'bucketed': similar lengths in one bin", default="packed"
    )
    bin_tokens: int = setting(
        IDENTITY, "slots of one bin, the unit that sequences are packed into", unit="tokens", default=16384
    )
    bins_per_step: int = setting(IDENTITY, "bins of one optimizer step, over all ranks", unit="bins", default=128)
    window_sequences: int = setting(IDENTITY, "sequences that are packed together", unit="sequences", default=131072)
    bins_per_forward: int = setting(
        OPERATIONAL, "bins that one rank takes through one forward pass", unit="bins", default=1
    )
    workers: int = setting(
        OPERATIONAL, "processes of each rank that fill bins; 0: the training process does", unit="processes", default=0
    )
    prefetch: int = setting(OPERATIONAL, "batches that each worker fills ahead of the step", unit="batches", default=4)
    store_dir: str = setting(
        OPERATIONAL,
        "where token stores are built and found again, and what is derived from one that can only be read",
        unit="path",
        default="runs/stores",
    )
    ingest: IngestSettings = IngestSettings()
    mask: MaskSettings = MaskSettings()

    def __post_init__(self) -> None:
        CorpusSettings.__post_init__(self)
        if not self.sources and not self.mixture:
            raise ValueError("data.sources is empty; name at least one FASTA file, or 'synthetic:0'")
        if self.mixture:
            for name, default in (
                ("sources", ()),
                ("clusters", None),
                ("split_identity", None),
                ("sample_by", "sequence"),
                ("exclude", None),
                ("streaming", False),
            ):
                if getattr(self, name) != default:
                    raise ValueError(
                        f"data.mixture is given and data.{name} is {getattr(self, name)!r}; "
                        f"write {name} into the tables [[data.mixture]], one for each corpus"
                    )
        require(
            0.0 < self.validation_fraction < 1.0,
            "data.validation_fraction",
            self.validation_fraction,
            "it must lie between 0 and 1, for example 0.01 to hold out one cluster in a hundred",
        )
        for name in ("bin_tokens", "bins_per_step", "window_sequences", "bins_per_forward", "prefetch"):
            require(getattr(self, name) >= 1, f"data.{name}", getattr(self, name), "it must be at least 1")
        require(0 <= self.workers <= 64, "data.workers", self.workers, "it must lie in 0..64")
        _require_stages("data.curriculum", self.curriculum)
        for name, crop in (("crop_tokens", self.crop_tokens), *(("curriculum", crop) for _, crop in self.curriculum)):
            if not 3 <= crop <= self.bin_tokens:
                raise ValueError(
                    f"data.{name} is {crop}; it must lie between 3 (begin, one residue, end) and "
                    f"data.bin_tokens = {self.bin_tokens}: lower the crop or raise the bin"
                )

    @property
    def corpora(self) -> tuple[CorpusSettings, ...]:
        """The corpora that are drawn from: those of the mixture, or the one of `sources`."""
        return self.mixture or (self,)

    @property
    def weights(self) -> tuple[int, ...]:
        """Weight of each of `corpora`."""
        return tuple(corpus.weight for corpus in self.mixture) or (1,)

    @property
    def documents_per_bin(self) -> int:
        """Most documents that one bin may hold, so that `Batch.cu_seqlens` has one length: one per 8 slots."""
        return max(1, self.bin_tokens // 8)
