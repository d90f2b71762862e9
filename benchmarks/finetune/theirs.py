"""The other side of `benchmarks.finetune`: `transformers.Trainer` with `EsmForSequenceClassification`.

In: proteins in the order of their batches, the weights that our side begins with. Out: as of our side. Kept: nothing.

It gets every advantage: proteins are tokenised before, padded by a few lines of NumPy, attention is SDPA's, the
optimizer fused; nothing is logged, saved or evaluated meanwhile.
"""

import contextlib
import io
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.finetune.ours import TASK, Sizes, Trained
from benchmarks.finetune.rows import Protein
from data.alphabet import CLS, EOS, LETTER_IDS, PAD
from finetune.model import head_name
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS

RANK, ALPHA = 8, 16.0
"""LoRA's rank and alpha, the defaults of a recipe."""
MAPS = ("query", "key", "value", "attention.output.dense")
"""The maps that get adapters: those of ours, whose query, key and value are one."""


def classifier(sizes: Sizes, weights: Mapping[str, Tensor]) -> Any:
    """Transformers' model with the weights of ours, with peft's adapters where asked."""
    from transformers import EsmForSequenceClassification

    from pretrain.model.weights.io import to_transformers

    masked = MaskedLanguageModel(PRESETS[sizes.preset])
    own = {name.removeprefix("encoder."): w for name, w in weights.items() if name.startswith("encoder.")}
    masked.encoder.load_state_dict({name: w for name, w in own.items() if "lora_" not in name}, strict=not sizes.lora)
    if sizes.lora:  # adapters stand beside the maps that they adapt
        plain = {name.replace(".base_layer", ""): w for name, w in own.items() if "lora_" not in name}
        masked.encoder.load_state_dict(plain)
    copy: Any = to_transformers(masked)
    copy.config.num_labels = len(sizes.classes)
    model: Any = EsmForSequenceClassification(copy.config)
    model.esm.load_state_dict(copy.esm.state_dict())
    head = f"heads.{head_name(TASK)}.map."
    model.classifier.load_state_dict({n.removeprefix(head): w for n, w in weights.items() if n.startswith(head)})
    model.set_attn_implementation("sdpa")
    if sizes.lora:
        from peft import LoraConfig, get_peft_model

        settings = LoraConfig(task_type="SEQ_CLS", r=RANK, lora_alpha=int(ALPHA), target_modules=list(MAPS))
        return get_peft_model(model, settings)
    return model


def tokenised(protein: Protein, classes: Sequence[str]) -> dict[str, Any]:
    """What the data set holds of a protein."""
    letters = LETTER_IDS[np.frombuffer(protein.sequence.encode(), np.uint8)].astype(np.int64)
    return {"input_ids": np.concatenate([[CLS], letters, [EOS]]), "labels": classes.index(protein.label)}


def padded(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """A batch: ids and mask ``(batch, longest)``, labels ``(batch,)``, int64."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids, mask = np.full((len(rows), longest), PAD, np.int64), np.zeros((len(rows), longest), np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row["input_ids"])], mask[number, : len(row["input_ids"])] = row["input_ids"], 1
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask), "labels": labels}


def train_theirs(
    sizes: Sizes,
    weights: Mapping[str, Tensor],
    training: Sequence[Protein],
    held_out: Sequence[Protein],
    *,
    in_order: bool = True,
) -> Trained:
    """Train from these weights, and score the proteins that are held out.

    Args:
        sizes: of both sides.
        weights: that our run begins with.
        training: in the order in which batches take them, or to be shuffled.
        held_out: to be scored.
        in_order: whether they are taken in this order.
    """
    from transformers import Trainer, TrainerCallback, TrainingArguments

    slots = 0

    def collate(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        nonlocal slots
        batch = padded(rows)
        slots += batch["input_ids"].numel()
        return batch

    clock = [0.0, 0.0]

    class Watch(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            clock[0] = time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock[1] = time.process_time()

    model = classifier(sizes, weights)
    steps = math.ceil(len(training) / sizes.batch_sequences) * sizes.passes
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        arguments = TrainingArguments(
            output_dir=str(Path(folder)),
            per_device_train_batch_size=sizes.batch_sequences,
            num_train_epochs=sizes.passes,
            learning_rate=sizes.peak_lr,
            lr_scheduler_type="linear",
            warmup_steps=max(1, round(0.1 * steps)),
            weight_decay=0.01,
            max_grad_norm=1.0,
            optim="adamw_torch_fused",
            train_sampling_strategy="sequential" if in_order else "random",
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
            use_cpu=not torch.cuda.is_available(),
            seed=sizes.seed,
        )
        rows: Any = [tokenised(protein, sizes.classes) for protein in training]
        trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate, callbacks=[Watch()])
        taken = trainer.train().global_step
    loss, accuracy = scored(model, held_out, sizes.classes)
    tokens = sizes.passes * sum(map(len, training))
    return Trained(clock[1] - clock[0], tokens, slots, taken, loss, accuracy)


@torch.no_grad()
def scored(model: Any, proteins: Sequence[Protein], classes: Sequence[str], size: int = 8) -> tuple[float, float]:
    """Mean cross-entropy in nats, and the share of proteins whose class is found."""
    model.eval()
    in_order = sorted(proteins, key=len)
    losses, right = [], 0
    for first in range(0, len(in_order), size):
        batch = padded([tokenised(protein, classes) for protein in in_order[first : first + size]])
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        losses += F.cross_entropy(logits, batch["labels"], reduction="none").tolist()
        right += int((logits.argmax(1) == batch["labels"]).sum())
    return math.fsum(losses) / max(1, len(losses)), right / max(1, len(proteins))
