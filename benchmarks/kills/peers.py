"""The training programs that are killed: Accelerate's loop, the Trainer of transformers, and ours.

In: a folder, which a program that was killed finds as it left it. Out: the weights at the end, in one file. Kept: a
line in `trained.jsonl` for each step, written when the step has been taken.

All train the same tiny ESM-2 on the same sequences with AdamW and a constant rate. The masked residues of a sequence
depend on nothing but the sequence, and nothing is dropped out, so that no state of a random generator is needed to end
with the same weights. The loops of others do what their documentation and examples say for a resume in the middle of an
epoch, with the settings under which it is exact: a seeded sampler whose epoch is set. Accelerate's is run without
these, too, as it is by default.
"""

import json
import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import EsmConfig, EsmForMaskedLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

SEQUENCES, LENGTH, BATCH, EPOCHS, EVERY = 96, 64, 8, 5, 4
"""12 steps an epoch, 60 in all, a checkpoint after every fourth."""
_MASK = 32


class Sequences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Drawn sequences, masked once and for all."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self._ids = torch.randint(4, 24, (SEQUENCES, LENGTH), generator=draw)
        self._masked = torch.rand((SEQUENCES, LENGTH), generator=draw) < 0.15

    def __len__(self) -> int:
        return SEQUENCES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids, masked = self._ids[index], self._masked[index]
        return {
            "number": torch.tensor(index),
            "input_ids": ids.masked_fill(masked, _MASK),
            "labels": ids.masked_fill(~masked, -100),
        }


class Model(nn.Module):
    """ESM-2 with two layers of width 48; it remembers which sequences it was given last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = EsmConfig(
            vocab_size=33,
            pad_token_id=1,
            mask_token_id=_MASK,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=192,
            position_embedding_type="rotary",
            token_dropout=False,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            tie_word_embeddings=False,  # the Trainer cannot save shared tensors of a plain module
        )
        self.encoder = EsmForMaskedLM(config)
        self.given: list[int] = []

    def forward(self, number: Tensor, input_ids: Tensor, labels: Tensor) -> dict[str, Any]:
        """The loss of sequences, whose numbers are kept."""
        self.given = number.tolist()
        loss: Tensor = self.encoder(input_ids=input_ids, labels=labels).loss
        return {"loss": loss}


def tell(folder: Path, attempt: int, step: int, given: list[int]) -> None:
    """Note a step that was taken, in one write."""
    line = json.dumps({"attempt": attempt, "step": step, "given": given}) + "\n"
    file = os.open(folder / "trained.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, line.encode())
    os.close(file)


def finish(folder: Path, model: nn.Module) -> None:
    """Write the weights that the run ended with."""
    torch.save({name: tensor.clone() for name, tensor in model.state_dict().items()}, folder / "end.pt")


def with_accelerate(folder: Path, attempt: int, *, seeds_epochs: bool = True) -> None:
    """The loop of Accelerate's example of checkpoints by step: `save_state`, `load_state`, `skip_first_batches`.

    Args:
        folder: of the run.
        attempt: number of the start.
        seeds_epochs: whether the sampler has a seed, and each epoch is set; without, all is as it is by default.
    """
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed

    set_seed(0)
    accelerator = Accelerator(
        cpu=True,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0) if seeds_epochs else None,
        project_config=ProjectConfiguration(str(folder), automatic_checkpoint_naming=False),
    )
    model: nn.Module = Model()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader: Any = torch.utils.data.DataLoader(Sequences(), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step, saved = 0, folder / "saved"
    saved.mkdir(exist_ok=True)
    newest = max(saved.iterdir(), key=lambda path: int(path.name.rpartition("_")[2]), default=None)
    if newest:
        accelerator.load_state(str(newest))
        step = int(newest.name.rpartition("_")[2])
    for epoch in range(step // len(loader), EPOCHS):
        rest = accelerator.skip_first_batches(loader, step % len(loader)) if step % len(loader) else loader
        if seeds_epochs:
            loader.set_epoch(epoch)
            rest.set_epoch(epoch)
        for batch in rest:
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            tell(folder, attempt, step, accelerator.unwrap_model(model).given)
            if step % EVERY == 0:
                accelerator.save_state(str(saved / f"step_{step}"), safe_serialization=True)
    finish(folder, accelerator.unwrap_model(model))


class _Telling(TrainerCallback):
    """Notes the steps that the Trainer takes."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self._folder, self._attempt = folder, attempt

    def on_step_end(self, args: Any, state: Any, control: Any, **how: Any) -> None:
        """After a step."""
        tell(self._folder, self._attempt, state.global_step, how["model"].given)


def with_trainer(folder: Path, attempt: int) -> None:
    """The Trainer, resumed from what `get_last_checkpoint` finds."""
    arguments = TrainingArguments(
        output_dir=str(folder / "saved"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        save_steps=EVERY,
        save_strategy="steps",
        seed=0,
        data_seed=0,
        use_cpu=True,
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    )
    model = Model()
    trainer = Trainer(model, arguments, train_dataset=Sequences(), callbacks=[_Telling(folder, attempt)])
    (folder / "saved").mkdir(exist_ok=True)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder / "saved")))
    finish(folder, model)


def with_ours(folder: Path, attempt: int) -> None:
    """`python -m pretrain RECIPE`, whose log of steps is its own."""
    from pretrain.__main__ import main

    os.chdir(folder)
    recipe = folder / "recipe.toml"
    if not recipe.exists():
        draw = random.Random(0)
        proteins = ["".join(draw.choices("ACDEFGHIKLMNPQRSTVWY", k=LENGTH - 2)) for _ in range(SEQUENCES + 4)]
        (folder / "proteins.fasta").write_text("".join(f">{n}\n{text}\n" for n, text in enumerate(proteins)))
        (folder / "clusters.tsv").write_text("".join(f"{n}\t{n}\n" for n in range(len(proteins))))
        recipe.write_text(_RECIPE.format(every=EVERY, tokens=SEQUENCES * LENGTH * EPOCHS, slots=2 * LENGTH))
    raise SystemExit(main([str(recipe), "--despite-failures"]))


_RECIPE = """
[run]
directory = "run"
log_every = 1
evaluate_every = 1000
checkpoint_every = {every}

[model]
preset = "esm2_60k"

[data]
sources = ["proteins.fasta"]
clusters = "clusters.tsv"
validation_fraction = 0.04
crop_tokens = {slots}
bin_tokens = {slots}
bins_per_step = 4

[schedule]
peak_lr = 1e-3
warmup_tokens = 0
final_lr = 1.0
total_tokens = {tokens}
"""
PROGRAMS = {
    "Accelerate": with_accelerate,
    "Accelerate by default": partial(with_accelerate, seeds_epochs=False),
    "Trainer": with_trainer,
    "ours": with_ours,
}
