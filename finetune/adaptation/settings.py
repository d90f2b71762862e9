"""What a recipe says about the encoder's part in fine-tuning: `[adaptation]`.

In: values of a recipe. Out: a frozen dataclass whose values are checked. Kept: nothing. Torch is not imported.
"""

from dataclasses import dataclass
from typing import ClassVar

from zymogen.settings.section import IDENTITY, OPERATIONAL, Section, require, require_known, setting

KINDS = ("frozen", "lora", "full")
TARGETS = ("attention.qkv", "attention.out", "feed_forward.up", "feed_forward.gate_up", "feed_forward.down")
"""Maps of a layer that an adapter can be added to; an ESM-2 has `up`, an ESM C `gate_up`."""

_REFUSED = {
    "adalora": "it takes ranks away by a schedule of its own while it trains, which no checkpoint here can continue",
    "ia3": "it scales activations and has no matrices of low rank, which is what is merged and exported here",
    "qlora": "it rounds the base weights to 4 bits; set 'lora', and compute in bf16 to save memory",
    "dora": "it is a form of LoRA: set 'lora' and adaptation.use_dora=true",
    "rslora": "it is a form of LoRA: set 'lora' and adaptation.use_rslora=true",
}
_LORA = ("kind", ("lora",))
"""What reads most settings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptationSettings(Section):
    """What of the encoder learns.

    LoRA: Hu et al. 2021, arXiv:2106.09685. rsLoRA: Kalajdzievski 2023, arXiv:2312.03732. DoRA: Liu et al. 2024,
    arXiv:2402.09353. Layer-wise decay: Clark et al. 2020, arXiv:2003.10555, appendix B.
    """

    section: ClassVar = "adaptation"
    kind: str = setting(
        IDENTITY,
        "what of the encoder learns: nothing ('frozen'), adapters of low rank ('lora'), all ('full')",
        "lora",
    )
    rank: int = setting(IDENTITY, "rank of each adapter", 8, only=_LORA, at_least=1)
    alpha: float = setting(IDENTITY, "an adapter's product is multiplied by alpha / rank", 16.0, only=_LORA, above=0)
    use_rslora: bool = setting(
        IDENTITY, "multiply by alpha / sqrt(rank) instead, for ranks of 32 and more", False, only=_LORA
    )
    use_dora: bool = setting(
        IDENTITY, "train the length of each row of a matrix besides its adapter (DoRA)", False, only=_LORA
    )
    targets: tuple[str, ...] = setting(
        IDENTITY,
        "maps that get adapters: names inside a layer such as 'attention.qkv', or full paths for single layers",
        ("attention.qkv", "attention.out"),
        only=_LORA,
    )
    layer_decay: float = setting(
        IDENTITY,
        "factor on the learning rate from each layer to the one below it",
        0.9,
        only=("kind", ("full",)),
        above=0,
        at_most=1,
    )
    head_lr: float = setting(IDENTITY, "factor on the learning rate for the heads", 10.0, above=0)
    cache_gb: float = setting(
        OPERATIONAL,
        "largest size of a frozen encoder's features on disk; larger ones are computed each time",
        4.0,
        "GB",
        only=("kind", ("frozen",)),
        at_least=0,
    )

    def __post_init__(self) -> None:
        if reason := _REFUSED.get(self.kind.lower()):
            raise ValueError(f"adaptation.kind is {self.kind!r}, which is not offered: {reason}")
        if "://" not in self.kind:  # a URL may hold a secret, and is refused as one
            require_known("adaptation.kind", self.kind, KINDS)
        Section.__post_init__(self)
        require(self.kind != "lora" or bool(self.targets), "adaptation.targets", self.targets, "name at least one map")
