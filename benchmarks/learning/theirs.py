"""The other side: `transformers.Trainer` trains a model of the same size on the same proteins, for as long.

    python -m benchmarks.learning.theirs RUNS PROTEINS OUT PRESET BATCH RATE SECONDS

In: the training side of the track. Out: a folder that transformers loads. Kept: that folder, with the scores beside it.

It gets every advantage: its time begins with the first step, where an arm's begins with its command; proteins are
tokenised before and grouped by length; masks are drawn in a few lines of torch; attention is SDPA's, the optimizer
fused; nothing is logged, saved or validated meanwhile. It is one process with as many threads as an arm has processes,
in float32, which is its fastest on a CPU without instructions for bfloat16. The rate rises over a tenth of the steps
and falls to 0 over the others; how many steps there are, 110 steps of another Trainer have told.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.learning.arms import PUBLISHED
from benchmarks.learning.corpus import Proteins, proteins
from benchmarks.learning.runs import PROCESSES, Run, run_program, settings_of
from benchmarks.learning.scored import Scored
from data.alphabet import CLS, EOS, IS_TARGET, MASK, PAD
from data.corpus.prepare import open_corpora, prepare_corpora
from data.settings import DataSettings
from data.store.token_store import TokenStore

_TIMED, _WARM = 110, 10
"""Steps that tell how long one takes, and how many of them come before the clock starts. The Trainer sorts 50 batches
at a time from long to short: twice as many between them are as long as all are."""
_SELECTED, _MASKED, _RANDOM = 0.15, 0.8, 0.1
_NO_LABEL = -100


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the grid."""

    batch: int
    """Proteins a step."""
    rate: float
    """Peak learning rate."""

    @property
    def name(self) -> str:
        """For tables and folders."""
        return f"Trainer, batch {self.batch}, rate {self.rate:g}"


GRID = [Setting(batch, rate) for batch in (2, 4, 8) for rate in (5e-4, 1e-3, 2e-3)]


def by_trainer(setting: Setting, run: Run, runs: Path, files: Proteins) -> Scored:
    """Train as long as `run`, and score as it is scored, unless that was done before.

    Raises:
        subprocess.CalledProcessError: it failed; its log is beside its folder.
    """
    name = "".join(c if c.isalnum() else "-" for c in setting.name)
    out = runs / f"{name}_{run.size}_{run.seconds:g}s"
    if not (out / "config.json").exists():
        words = [runs, files.rest, out, f"esm2_{run.size}", setting.batch, setting.rate, run.seconds]
        run_program(out, "benchmarks.learning.theirs", *map(str, words), threads=PROCESSES)
    if not (kept := out / "scored.npz").exists():
        held_out = Run(PUBLISHED, run.size, run.tokens, run.seed, run.seconds).folder(runs)
        run_program(out, "benchmarks.learning.scored", str(held_out), str(out), str(kept))
    return Scored.read(kept)


def training_side(settings: DataSettings) -> list[NDArray[np.int64]]:
    """The token ids of each protein that an arm trains on, whole."""
    (part,) = open_corpora(settings, prepare_corpora(settings)).parts
    assert isinstance(part.store, TokenStore)
    records = np.arange(part.store.num_records)
    return [
        np.concatenate([[CLS], part.store.residues(record), [EOS]]).astype(np.int64)
        for record in records[part.split.is_training(records)].tolist()
    ]


def batch_of(rows: Sequence[Mapping[str, Any]], crop: int) -> dict[str, Tensor]:
    """Crops of proteins, padded and masked as BERT masks: ids, attention mask and labels, ``(batch, longest)`` each."""
    cut = []
    for row in rows:
        ids = row["input_ids"]
        first = int(torch.randint(max(1, len(ids) - crop + 1), ()))
        cut.append(ids[first : first + crop])
    ids = torch.full((len(cut), max(map(len, cut))), PAD)
    for number, each in enumerate(cut):
        ids[number, : len(each)] = torch.from_numpy(each)
    draws, kinds = torch.rand(ids.shape), torch.rand(ids.shape)
    targets = (draws < _SELECTED) & torch.from_numpy(IS_TARGET)[ids]
    labels = ids.masked_fill(~targets, _NO_LABEL)
    letters = torch.from_numpy(np.flatnonzero(IS_TARGET))
    others = letters[torch.randint(len(letters), ids.shape)]
    inputs = ids.masked_fill(targets & (kinds < _MASKED), MASK)
    inputs = torch.where(targets & (kinds >= _MASKED) & (kinds < _MASKED + _RANDOM), others, inputs)
    return {"input_ids": inputs, "attention_mask": (ids != PAD).long(), "labels": labels}


def train(rows: list[dict[str, Any]], preset: str, setting: Setting, crop: int, seconds: float, out: Path) -> int:
    """Train, and write the model; the number of steps that were taken.

    Args:
        rows: proteins, each with `input_ids` and `length`.
        preset: name of the size.
        setting: of the grid.
        crop: most tokens of a protein.
        seconds: of the training.
        out: the folder.
    """
    from transformers import EsmForMaskedLM, Trainer, TrainerCallback, TrainingArguments

    from pretrain.model.masked_language_model import MaskedLanguageModel
    from pretrain.model.presets import PRESETS
    from pretrain.model.weights.io import to_transformers

    config = to_transformers(MaskedLanguageModel(PRESETS[preset])).config
    clock: list[float] = []

    class Watch(TrainerCallback):
        """Notes when steps end, and ends the training when its time is over."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            clock.append(time.perf_counter())
            if limit and clock[-1] - began > limit:  # else as it is: the Trainer has said by then that steps are over
                control.should_training_stop = True

    def trainer(steps: int) -> Any:
        torch.manual_seed(0)
        model = EsmForMaskedLM(config)
        model.set_attn_implementation("sdpa")
        arguments = TrainingArguments(
            output_dir=str(out),
            per_device_train_batch_size=setting.batch,
            max_steps=steps,
            learning_rate=setting.rate,
            lr_scheduler_type="linear",
            warmup_steps=max(1, steps // 10),
            weight_decay=0.01,
            adam_beta2=0.98,
            max_grad_norm=1.0,
            optim="adamw_torch_fused",
            train_sampling_strategy="group_by_length",
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
            use_cpu=not torch.cuda.is_available(),
            seed=0,
        )
        return Trainer(
            model=model,
            args=arguments,
            train_dataset=rows,  # type: ignore[arg-type]
            data_collator=lambda some: batch_of(some, crop),
            callbacks=[Watch()],
        )

    limit = 0.0
    timed: int = trainer(_TIMED).train().global_step
    steps = max(1, round(seconds * (_TIMED - _WARM) / (clock[-1] - clock[_WARM - 1])))
    last, limit, began = trainer(steps), seconds, time.perf_counter()
    taken: int = last.train().global_step
    if timed != _TIMED or taken > steps:
        raise RuntimeError(
            f"the Trainers took {timed} and {taken} steps, and their schedules have {_TIMED} and {steps}"
        )
    print(f"{setting.name}: {taken:,} of {steps:,} steps in {time.perf_counter() - began:.1f} s", flush=True)
    last.model.save_pretrained(out)
    return taken


def main(runs: str, rest: str, out: str, preset: str, batch: str, rate: str, seconds: str) -> None:
    """Train one point of the grid."""
    torch.set_num_threads(PROCESSES)
    files = proteins((rest,), Path(runs))
    settings = settings_of(files, Path(runs))
    rows = [{"input_ids": ids, "length": min(len(ids), settings.crop_tokens)} for ids in training_side(settings)]
    train(rows, preset, Setting(int(batch), float(rate)), settings.crop_tokens, float(seconds), Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
