"""What a recipe says about data: sources, how they are read, split, curriculum, bins, masking and loading."""

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, Literal

from data.batches.settings import MaskSettings
from data.order.settings import PackingSettings
from zymogen.settings.extension import FORM, is_external, require_name
from zymogen.settings.section import IDENTITY, OPERATIONAL, SCHEDULE, Section, require, setting

LetterPolicy = Literal["refuse", "count"]
SampleBy = Literal["sequence", "cluster"]
SourceContent = Literal["protein", "any"]
AUTO = "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class ContentSettings(Section):
    """What sources, or the tables of a fine-tuning recipe, hold."""

    section: ClassVar = "data.ingest"
    content: SourceContent = setting(
        OPERATIONAL,
        "'protein': nucleotides and words such as NA are bad records, and a source that begins with nucleotides, "
        "three-letter codes, PIR or an alignment is refused; 'any': read the letters as amino acids nevertheless",
        "protein",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestSettings(ContentSettings):
    """How sources are read into a token store."""

    max_bad_fraction: float = setting(
        OPERATIONAL,
        "share of records that may be bad; each is written to rejected.jsonl of the store",
        0.0,
        "fraction",
        at_least=0,
        below=1,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusSettings(Section):
    """One corpus: what is read, and what of it is drawn."""

    section: ClassVar = "data"
    sources: tuple[str, ...] = setting(
        OPERATIONAL,
        "files, globs, URLs or stores: FASTA (.gz .bgz .zst), UniProt .xml and .dat, GenBank, Stockholm, Parquet, CSV, "
        "JSON, 'datasets://NAME', or 'synthetic:SEED' for the embedded corpus",
        (),
        "path",
    )
    format: str = setting(
        OPERATIONAL, f"'auto': by the suffix of each file, or {FORM} for a class of your own", AUTO, extends="class"
    )
    format_options: dict[str, Any] = setting(OPERATIONAL, "settings of a class of your own", {})
    clusters: str | None = setting(
        OPERATIONAL,
        "TSV of (cluster, record id) as MMseqs2 writes it, or UniProt's idmapping_selected.tab; without it, only equal "
        "sequences share a cluster",
        None,
        "path",
    )
    split_identity: float | None = setting(
        IDENTITY,
        "cluster with MMseqs2 at this sequence identity instead of naming clusters",
        None,
        "fraction",
        above=0,
        at_most=1,
    )
    sample_by: SampleBy = setting(
        IDENTITY,
        "'sequence': every record once a pass; 'cluster': one member of every cluster, chosen again in each pass",
        "sequence",
    )
    exclude: str | None = setting(
        OPERATIONAL, "table of record ids that never train, as `python -m data decontaminate` writes it", None, "path"
    )
    streaming: bool = setting(
        IDENTITY, "train while the store is being built: the first pass in the order of the sources", False
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        require_name(f"{self.section}.format", self.format, (AUTO,))
        said = f"only a class of your own reads it, and {self.section}.format is {self.format!r}"
        own = is_external(self.format) or not self.format_options
        require(own, f"{self.section}.format_options", self.format_options, said)
        if self.clusters is not None and self.split_identity is not None:
            raise ValueError(
                f"clusters is {self.clusters!r} and split_identity is {self.split_identity}: two ways to cluster one "
                "corpus; give one of them"
            )
        if self.streaming:
            for name in _changed(self, "sources", "streaming", "format", "format_options"):
                said = "that needs the whole corpus before the first step; leave one of them out"
                require(False, f"streaming is true and {name}", getattr(self, name), said)


def _changed(corpus: CorpusSettings, *leave_out: str) -> list[str]:
    """The settings of a corpus that do not have their default."""
    default, names = CorpusSettings(), (f.name for f in fields(CorpusSettings) if f.name not in leave_out)
    return [name for name in names if getattr(corpus, name) != getattr(default, name)]


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedCorpus(CorpusSettings):
    """One corpus of a mixture."""

    section: ClassVar = "data.mixture"
    weight: int = setting(
        IDENTITY, "places in the order that go to it, relative to the other weights", 1, at_least=1, at_most=1_000_000
    )

    def __post_init__(self) -> None:
        CorpusSettings.__post_init__(self)
        require(bool(self.sources), "sources of data.mixture", list(self.sources), "name at least one")
        require(not self.streaming, "streaming of data.mixture", True, "a mixture is drawn from finished stores")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSettings(PackingSettings, CorpusSettings):
    """Everything between files and batches. A corpus is identified by its content (fingerprint), not its paths."""

    mixture: tuple[MixedCorpus, ...] = setting(
        IDENTITY, "corpora drawn by weight, in place of data.sources: tables [[data.mixture]]", ()
    )
    validation_fraction: float = setting(
        IDENTITY,
        "share of clusters held out for validation; 0.01 is one in 100, and 0 holds out none: scores are then of "
        "training proteins",
        0.005,
        "fraction",
        at_least=0,
        below=1,
    )
    unknown_letters: LetterPolicy = setting(
        IDENTITY, "letters outside the alphabet: 'refuse' the record, or read as <unk> and 'count'", "refuse"
    )
    curriculum: tuple[tuple[int, int], ...] = setting(
        IDENTITY,
        "shorter crops for the first tokens: [[tokens at which a stage ends, crop_tokens], ...]; after the last stage, "
        "crop_tokens holds",
        (),
    )
    skip_bins: tuple[int, ...] = setting(
        SCHEDULE,
        "bins that are not trained, as numbers from 0 over all steps; the error of a numerical fault names them",
        (),
    )
    store_dir: str = setting(
        OPERATIONAL,
        "where token stores are built and reused, and where data derived from a read-only store is kept",
        "runs/stores",
        "path",
    )
    ingest: IngestSettings = IngestSettings()
    mask: MaskSettings = MaskSettings()

    def __post_init__(self) -> None:
        CorpusSettings.__post_init__(self)
        if not self.sources and not self.mixture:
            raise ValueError("data.sources is empty; name at least one FASTA file, or 'synthetic:0'")
        if self.mixture:
            for name in _changed(self):
                said = f"write {name} into the tables [[data.mixture]], one for each corpus"
                require(False, f"data.mixture is given and data.{name}", getattr(self, name), said)
        skipped = self.skip_bins
        said = "each must be the number of a bin, from 0 on, and stand there once"
        require(min(skipped, default=0) >= 0 and len(set(skipped)) == len(skipped), "data.skip_bins", skipped, said)
        stages = [list(stage) for stage in self.curriculum]
        said = "each stage is [tokens at which it ends, value], with ends that are above 0 and rise"
        require(all(a < b for a, b in pairwise([0, *(end for end, _ in stages)])), "data.curriculum", stages, said)
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
