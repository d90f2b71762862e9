"""The arms: what each changes of the recipe from which all start.

In: nothing. Out: `ARMS`. Kept: nothing.

An arm is a list of settings, as on a command line, and of trials (`trials`), which are no settings. An arm
stays here when it has lost: benchmarks/results/learning.json has the figures of all of them.
"""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

RECIPE = """\
# The recipe from which the arms of benchmarks.learning start: recipes/quickstart.toml before Muon, on real proteins.
[run]
directory = "runs/learning"
evaluate_every = 1_000_000
checkpoint_every = 1_000_000
[model]
preset = "esm2_800k"
[data]
sources = ["-"]
validation_fraction = 0.1
crop_tokens = 512
bin_tokens = 2048
bins_per_step = 4
[optimizer]
betas = [0.9, 0.95]
[schedule]
peak_lr = 2e-3
warmup = 0.1
total_tokens = 1_200_000
"""


@dataclass(frozen=True, slots=True)
class Arm:
    """One change, or several together."""

    settings: tuple[str, ...] = ()
    trials: tuple[str, ...] = ()
    """Names in `trials.NAMES`, each with ``=number`` after it."""

    def __add__(self, other: "Arm") -> "Arm":
        return Arm(self.settings + other.settings, self.trials + other.trials)


def _muon(rate: str) -> Arm:
    return Arm(("optimizer.name=muon", f"schedule.peak_lr={rate}"))


def _modern(rate: str = "{rate}") -> Arm:
    return Arm(("model.preset=modern_{size}",)) + _muon(rate)


def _as_in(blocks: str) -> Arm:
    """What a recipe of 8M parameters says; the length of crops, steps and run, which it gives too, are the track's."""
    path = Path(__file__).parents[2] / "recipes" / f"{blocks}_8m.toml"
    said = tomllib.loads(path.read_text(encoding="utf-8"))
    parts = {"model": said["model"], "optimizer": said["optimizer"], "schedule": said["schedule"]}
    parts["data.mask"] = said["data"].get("mask", {})
    settings = {f"{part}.{name}": json.dumps(value) for part, values in parts.items() for name, value in values.items()}
    settings = {"schedule.peak_lr": "none"} | settings | {"model.preset": f"{blocks}_{{size}}"}
    return Arm(tuple(f"{name}={value}" for name, value in settings.items() if name != "schedule.total_tokens"))


PUBLISHED = "esm2"
"""The arm with which others are compared."""
RATES = {"800k": 4e-3, "8m": 1.6e-3}
"""Peak rate of Muon by size, as `pretrain.proposal.rules` gives it."""
_START = Arm(("model.start=neighbours",))
_OURS = _modern() + _START
_TARGETS = Arm(("data.mask.select_prob=0.25",))
_MORE_TARGETS = Arm(("data.mask.select_prob=0.4",))
_ALL_MASKED = Arm(("data.mask.mask_prob=1", "data.mask.random_prob=0"))
_MOMENTUM = Arm(("optimizer.momentum=0.9",))
_DECAY = Arm(("optimizer.weight_decay=1e-5", "schedule.final_lr=0", "schedule.decay_end=1"))
_MORE_DECAY = Arm(("optimizer.weight_decay=0.1",))
_AVERAGE = Arm((), ("average=0.95",))
_STEPS = Arm(("data.bins_per_step=2",))
ARMS = {
    PUBLISHED: Arm(),
    "as in esm2_8m.toml": _as_in("esm2"),
    "as in modern_8m.toml": _as_in("modern"),
    "esm2, half the rate": Arm(("schedule.peak_lr=1e-3",)),
    "esm2, a fifth of the rate": Arm(("schedule.peak_lr=4e-4",)),
    "esm2, head bias": Arm((), ("bias=3.5",)),
    "esm2, fan-in": Arm((), ("fan_in=1",)),
    "esm2, Muon": _muon("{rate}"),
    "esm2, Muon, neighbours": _muon("{rate}") + _START,
    "modern, Muon": _modern(),
    "modern, Muon, head bias": _modern() + Arm((), ("bias=3.5",)),
    "modern, Muon, fan-in": _modern() + Arm((), ("fan_in=1",)),
    "modern, Muon, embedding": _modern() + Arm((), ("embedding=0.5",)),
    "ours: modern, Muon, neighbours": _OURS,
    "ours, half the rate": _modern("{half}") + _START,
    "ours, twice the rate": _modern("{twice}") + _START,
    "ours, 25 % are targets": _OURS + _TARGETS,
    "ours, every target masked": _OURS + _ALL_MASKED,
    "ours, decay 1e-5, rate to 0": _OURS + _DECAY,
    "ours, no warm-up": _OURS + Arm(("schedule.warmup=0",)),
    "ours, steps half as large": _modern("{less}") + _START + _STEPS,
    "ours, layers begin as the identity": _OURS + Arm((), ("outputs=0",)),
    "ours, larger values": _OURS + Arm((), ("values=0.5",)),
    "ours, 40 % are targets": _OURS + _MORE_TARGETS,
    "ours, 55 % are targets": _OURS + Arm(("data.mask.select_prob=0.55",)),
    "ours, crops grow": _OURS + Arm(("data.curriculum=[[{a_third}, 128], [{two_thirds}, 256]]",)),
    "ours, steps grow": _OURS + Arm((), ("ramp={a_third}",)),
    "ours, momentum 0.9": _OURS + _MOMENTUM,
    "ours, momentum 0.98": _OURS + Arm(("optimizer.momentum=0.98",)),
    "ours, NorMuon": _OURS + Arm((), ("normuon=0.95",)),
    "ours, decay 0.1": _OURS + _MORE_DECAY,
    "ours, decay 0.1, cautious": _OURS + _MORE_DECAY + Arm((), ("cautious=1",)),
    "ours, spectral rate": _OURS + Arm((), ("spectral=1",)),
    "ours, average of weights": _OURS + _AVERAGE,
    "ours, average, rate falls to a half": _OURS + _AVERAGE + Arm(("schedule.final_lr=0.5",)),
    "ours, convolution over 7 neighbours": _OURS + Arm((), ("around=7",)),
    "ours, 40 % and momentum 0.9": _OURS + _MORE_TARGETS + _MOMENTUM,
    "ours, 40 % and steps": _modern("{less}") + _START + _MORE_TARGETS + _STEPS,
    "ours, 40 % and momentum 0.9, every target masked": _OURS + _MORE_TARGETS + _MOMENTUM + _ALL_MASKED,
    "ours, targets and decay": _OURS + _TARGETS + _DECAY,
    "ours, targets and steps": _modern("{less}") + _START + _TARGETS + _STEPS,
    "ours, targets, decay and steps": _modern("{less}") + _START + _TARGETS + _DECAY + _STEPS,
}
"""Name -> arm; ``{size}`` stands for 800k or 8m, ``{rate}``, ``{half}``, ``{twice}`` and ``{less}`` for rates, and
``{a_third}`` and ``{two_thirds}`` for tokens."""
