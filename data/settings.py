"""What a recipe says about data: sources, split, bins and masking."""

from dataclasses import dataclass
from typing import Literal

from data.setting import IDENTITY, OPERATIONAL, setting

LetterPolicy = Literal["refuse", "count"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskSettings:
    """Corruption of the input for masked language modelling (Devlin et al. 2019, arXiv:1810.04805)."""

    select_prob: float = setting(IDENTITY, "share of residues selected as targets", unit="probability", default=0.15)
    mask_prob: float = setting(IDENTITY, "share of targets shown as <mask>", unit="probability", default=0.8)
    random_prob: float = setting(
        IDENTITY, "share of targets shown as a random residue", unit="probability", default=0.1
    )

    def __post_init__(self) -> None:
        if not 0.0 < self.select_prob <= 1.0:
            raise ValueError(f"data.mask.select_prob is {self.select_prob}; it must lie in (0, 1]")
        for name in ("mask_prob", "random_prob"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"data.mask.{name} is {getattr(self, name)}; it must lie in [0, 1]")
        if self.mask_prob + self.random_prob > 1.0 + 1e-12:
            raise ValueError(
                f"data.mask.mask_prob {self.mask_prob} + random_prob {self.random_prob} exceed 1: "
                "what is left of 1 is the share of targets shown as they are"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSettings:
    """Sources, split, bins and masking. The corpus itself is identified by the fingerprint of its content."""

    sources: tuple[str, ...] = setting(
        OPERATIONAL,
        "FASTA files, plain or gzip; paths, globs, or 'synthetic:SEED' for the embedded corpus",
    )
    clusters: str | None = setting(
        OPERATIONAL,
        "TSV of (cluster, record id), as MMseqs2 writes it; without it, only equal sequences share a cluster",
        default=None,
    )
    validation_fraction: float = setting(
        IDENTITY, "share of clusters held out for validation", unit="fraction", default=0.005
    )
    unknown_letters: LetterPolicy = setting(
        IDENTITY, "letters outside the alphabet: 'refuse' the file, or read as <unk> and 'count'", default="refuse"
    )
    crop_tokens: int = setting(
        IDENTITY, "longest document; a longer protein gives a random crop", unit="tokens", default=1024
    )
    bin_tokens: int = setting(
        IDENTITY, "slots of one bin, the unit that sequences are packed into", unit="tokens", default=16384
    )
    bins_per_step: int = setting(IDENTITY, "bins of one optimizer step, over all ranks", unit="bins", default=128)
    window_sequences: int = setting(IDENTITY, "sequences that are packed together", unit="sequences", default=131072)
    bins_per_forward: int = setting(
        OPERATIONAL, "bins that one rank takes through one forward pass", unit="bins", default=1
    )
    store_dir: str = setting(
        OPERATIONAL, "where token stores are built and found again", unit="path", default="runs/stores"
    )
    mask: MaskSettings = MaskSettings()

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("data.sources is empty; name at least one FASTA file, or 'synthetic:0'")
        if not 0.0 < self.validation_fraction < 1.0:
            raise ValueError(
                f"data.validation_fraction is {self.validation_fraction}; it must lie between 0 and 1, "
                "for example 0.01 to hold out one cluster in a hundred"
            )
        for name in ("bin_tokens", "bins_per_step", "window_sequences", "bins_per_forward"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name} is {getattr(self, name)}; it must be at least 1")
        if not 3 <= self.crop_tokens <= self.bin_tokens:
            raise ValueError(
                f"data.crop_tokens is {self.crop_tokens}; it must lie between 3 (begin, one residue, end) and "
                f"data.bin_tokens = {self.bin_tokens}: lower the crop or raise the bin"
            )

    @property
    def documents_per_bin(self) -> int:
        """Most documents that one bin may hold, so that `Batch.cu_seqlens` has one length: one per 8 slots."""
        return max(1, self.bin_tokens // 8)
