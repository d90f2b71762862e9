"""The recipe: what is trained. Plain frozen dataclasses; `data.recipe.toml_file` reads them from TOML and overrides."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_args, get_type_hints

from data.recipe.setting import IDENTITY, OPERATIONAL, SCHEDULE, SettingClass, setting
from data.recipe.settings import DataSettings
from pretrain.model.presets import PRESETS


def _require(holds: bool, name: str, got: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {got!r}; {allowed}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """Which encoder, and what it starts from. Exactly one of `preset` and `init`."""

    preset: str | None = setting(IDENTITY, "architecture to start from random weights, such as 'esm2_8m'", default=None)
    init: str | None = setting(
        IDENTITY, "folder or Hub name of an ESM-2 or ESM C to start from; brings its own architecture", default=None
    )
    dropout: float = setting(
        IDENTITY, "dropout behind attention and feed-forward (ESM-2: 0)", unit="probability", default=0.0
    )

    def __post_init__(self) -> None:
        _require(0.0 <= self.dropout < 1.0, "model.dropout", self.dropout, "it must lie in [0, 1)")
        if (self.preset is None) == (self.init is None):
            raise ValueError(
                f"model.preset is {self.preset!r} and model.init is {self.init!r}; give exactly one: a preset to "
                "train from scratch, or init to continue from published weights"
            )
        if self.preset is not None and self.preset not in PRESETS:
            nearest = difflib.get_close_matches(self.preset, PRESETS, 1, 0.0)[0]
            raise ValueError(f"model.preset is {self.preset!r}; the nearest is {nearest!r}, all: {', '.join(PRESETS)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSettings:
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101); defaults are ESM-2's (Lin et al. 2023, supplement A).

    With Muon (Jordan et al. 2024), AdamW moves what is no matrix of the encoder's layers.
    """

    name: Literal["adamw", "muon"] = setting(
        IDENTITY, "'adamw', or 'muon' for the matrices of the layers and AdamW for the rest", default="adamw"
    )
    momentum: float = setting(IDENTITY, "decay of Muon's momentum", default=0.95)
    newton_schulz: Literal["float32", "bfloat16"] = setting(
        IDENTITY,
        "dtype of Muon's iteration; 'bfloat16' is cheaper on a GPU, and engines agree less closely",
        default="float32",
    )
    betas: tuple[float, float] = setting(IDENTITY, "decay of both of AdamW's moments", default=(0.9, 0.98))
    eps: float = setting(IDENTITY, "added to the root of the second moment", default=1e-8)
    weight_decay: float = setting(IDENTITY, "decoupled decay of matrices", unit="1/step, times lr", default=0.01)
    clip_norm: float = setting(IDENTITY, "largest global gradient norm", default=1.0)

    def __post_init__(self) -> None:
        _require(self.name in ("adamw", "muon"), "optimizer.name", self.name, "allowed are 'adamw' and 'muon'")
        iterations = get_args(get_type_hints(type(self))["newton_schulz"])
        said = f"allowed are {' and '.join(map(repr, iterations))}"
        _require(self.newton_schulz in iterations, "optimizer.newton_schulz", self.newton_schulz, said)
        _require(0.0 <= self.momentum < 1.0, "optimizer.momentum", self.momentum, "it must lie in [0, 1)")
        default = {f.name: f.default for f in fields(self)}
        for name in ("momentum", "newton_schulz"):
            value = getattr(self, name)
            said = (
                f"only Muon reads it, and optimizer.name is {self.name!r}: take it out with optimizer.{name}=none, or "
                "set the name to 'muon'"
            )
            _require(self.name == "muon" or value == default[name], f"optimizer.{name}", value, said)
        _require(all(0.0 <= b < 1.0 for b in self.betas), "optimizer.betas", self.betas, "both must lie in [0, 1)")
        _require(self.eps > 0.0, "optimizer.eps", self.eps, "it must be positive")
        _require(self.weight_decay >= 0.0, "optimizer.weight_decay", self.weight_decay, "it must not be negative")
        _require(self.clip_norm > 0.0, "optimizer.clip_norm", self.clip_norm, "it must be positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSettings:
    """Length of training and learning rate, both by real tokens seen; defaults are ESM-2's."""

    peak_lr: float = setting(SCHEDULE, "learning rate at the end of the warm-up", default=4e-4)
    total_tokens: int = setting(SCHEDULE, "training ends here", unit="tokens", default=10**12)
    warmup_tokens: int = setting(SCHEDULE, "linear rise from 0", unit="tokens", default=2000 * 2**21)
    decay_start: float = setting(
        SCHEDULE,
        "share of total_tokens at which the linear decay begins, but not within the warm-up",
        unit="fraction",
        default=0.0,
    )
    decay_end: float = setting(
        SCHEDULE, "share of total_tokens at which the linear decay ends", unit="fraction", default=0.9
    )
    final_lr: float = setting(SCHEDULE, "learning rate from there on", unit="fraction of peak_lr", default=0.1)

    def __post_init__(self) -> None:
        _require(self.peak_lr > 0.0, "schedule.peak_lr", self.peak_lr, "it must be positive")
        _require(self.total_tokens > 0, "schedule.total_tokens", self.total_tokens, "it must be positive")
        _require(0.0 < self.decay_end <= 1.0, "schedule.decay_end", self.decay_end, "it must lie in (0, 1]")
        _require(
            0.0 <= self.decay_start < self.decay_end,
            "schedule.decay_start",
            self.decay_start,
            f"it must be at least 0 and below schedule.decay_end = {self.decay_end}",
        )
        _require(0.0 <= self.final_lr <= 1.0, "schedule.final_lr", self.final_lr, "it must lie in [0, 1]")
        _require(
            0 <= self.warmup_tokens < self.decay_end * self.total_tokens,
            "schedule.warmup_tokens",
            self.warmup_tokens,
            f"it must be at least 0 and end before the decay does, at {self.decay_end * self.total_tokens:.0f} tokens "
            "(schedule.decay_end x schedule.total_tokens)",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeSettings:
    """How the model is computed; nothing here changes what is learned."""

    attention: Literal[
        "auto", "varlen", "varlen_fa2", "varlen_fa3", "varlen_fa4", "flash_cpu", "per_document", "dense"
    ] = setting(
        OPERATIONAL,
        "backend; 'auto' takes the best that this machine has, and 'varlen' the best FlashAttention",
        default="auto",
    )
    checkpointing: Literal["none", "selective", "layer"] = setting(
        OPERATIONAL,
        "what the backward pass computes again to save memory: norms and feed-forward ('selective') or whole layers",
        default="none",
    )
    compile: Literal["auto", "on", "off"] = setting(
        OPERATIONAL, "torch.compile of the layers; 'auto': on a GPU, if a first step works", default="auto"
    )
    tf32: bool = setting(
        OPERATIONAL,
        "float32 products on a GPU in TensorFloat-32: 10 bits of mantissa, not 23, and several times as fast",
        default=True,
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            allowed = get_args(get_type_hints(type(self))[f.name]) or (False, True)
            value = getattr(self, f.name)
            _require(value in allowed, f"compute.{f.name}", value, f"allowed are {', '.join(map(repr, allowed))}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelSettings:
    """What an Accelerate YAML has no word for. Everything else of how a run is spread stands there."""

    context: int = setting(
        OPERATIONAL, "processes that share every batch, each with a part of its slots", unit="processes", default=1
    )
    exchange: Literal["auto", "ulysses", "all_gather"] = setting(
        OPERATIONAL,
        "what they exchange for attention: heads ('ulysses') or keys and values; 'auto': heads, if they divide",
        default="auto",
    )

    def __post_init__(self) -> None:
        _require(self.context >= 1, "parallel.context", self.context, "it must be at least 1")
        allowed = get_args(get_type_hints(type(self))["exchange"])
        said = f"allowed are {', '.join(map(repr, allowed))}"
        _require(self.exchange in allowed, "parallel.exchange", self.exchange, said)
        said = f"nothing is exchanged with parallel.context = {self.context}: take it out, or raise parallel.context"
        _require(self.context > 1 or self.exchange == "auto", "parallel.exchange", self.exchange, said)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Where a run lives and how often it reports, evaluates and saves."""

    directory: str = setting(OPERATIONAL, "run directory; the same directory continues the run", unit="path")
    seed: int = setting(IDENTITY, "keys every random draw", default=0)
    log_every: int = setting(OPERATIONAL, "between two lines of metrics", unit="steps", default=10)
    evaluate_every: int = setting(OPERATIONAL, "between two validations", unit="steps", default=1000)
    validation_sequences: int = setting(
        OPERATIONAL, "most validation proteins scored at a time", unit="sequences", default=2000
    )
    checkpoint_every: int = setting(OPERATIONAL, "between two checkpoints", unit="steps", default=1000)
    keep_checkpoints: int = setting(OPERATIONAL, "newest checkpoints that are kept", default=2)
    shared: bool = setting(
        OPERATIONAL,
        "whether others may read the run's checkpoints, as far as your umask lets them; if not, they are yours alone",
        default=False,
    )
    trackers: tuple[str, ...] = setting(
        OPERATIONAL, "experiment trackers beside metrics.jsonl: 'wandb', 'tensorboard'", default=()
    )

    def __post_init__(self) -> None:
        for name in ("log_every", "evaluate_every", "validation_sequences", "checkpoint_every", "keep_checkpoints"):
            _require(getattr(self, name) >= 1, f"run.{name}", getattr(self, name), "it must be at least 1")
        unknown = set(self.trackers) - {"wandb", "tensorboard"}
        _require(not unknown, "run.trackers", list(self.trackers), "allowed are 'wandb' and 'tensorboard'")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One training run, whole."""

    run: RunSettings
    model: ModelSettings
    data: DataSettings
    optimizer: OptimizerSettings = field(default=OptimizerSettings())
    schedule: ScheduleSettings = field(default=ScheduleSettings())
    compute: ComputeSettings = field(default=ComputeSettings())
    parallel: ParallelSettings = field(default=ParallelSettings())

    def __post_init__(self) -> None:
        size, slots = self.parallel.context, self.data.bin_tokens
        said = f"it must be a multiple of parallel.context = {size}, so that every process gets equally many slots"
        _require(slots % size == 0, "data.bin_tokens", slots, said)
        heads = PRESETS[self.model.preset].heads if self.model.preset else size
        said = f"{size} processes cannot share the {heads} heads of {self.model.preset}: take 'auto' or 'all_gather'"
        _require(self.parallel.exchange != "ulysses" or heads % size == 0, "parallel.exchange", "ulysses", said)


def settings_of(recipe: Any, prefix: str = "") -> Iterator[tuple[str, SettingClass, Any]]:
    """(dotted name, class, value) of every field of a recipe, sections flattened and tables of a list numbered."""
    for f in fields(recipe):
        value = getattr(recipe, f.name)
        if is_dataclass(value):
            yield from settings_of(value, f"{prefix}{f.name}.")
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for number, item in enumerate(value):
                yield from settings_of(item, f"{prefix}{f.name}.{number}.")
        else:
            yield f"{prefix}{f.name}", f.metadata["class"], value
