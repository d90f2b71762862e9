"""What was written is what was trained: an export is loaded as its users load it, and compared before it has its name.

In: a model of ours, and the folder of its export. Out: an error, or nothing. Kept: nothing. `reload` and
`require_close` are for models of other classes, which `finetune` exports.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from data.alphabet import CLS, EOS, MASK, STANDARD_IDS
from data.batches.batch import PackedSequences
from pretrain.model.masked_language_model import MaskedLanguageModel

CLOSE = 1e-4
"""Largest difference of two logits, as a share of the largest logit. Both sides compute in float32 and mostly agree to
1e-6; a tensor under a wrong name, or rotary frequencies that were rounded on the way, differ by more than 1e-3."""

LENGTHS = (12, 61, 150)
"""Residues of the sequences that both sides compute."""

_REPORT = "report this with the versions in run.json"


@torch.no_grad()
def reference_logits(model: MaskedLanguageModel) -> list[tuple[Tensor, Tensor]]:
    """Tokens of made-up proteins, and the logits that `model` computes of them.

    Args:
        model: float32 on the host, in evaluation mode, with weights rounded as those of an export are.
    """
    found = []
    for number, residues in enumerate(LENGTHS):
        ids = random_batch(residues, number)
        ids[number + 1 :: 7] = MASK
        tokens = torch.cat([torch.tensor([CLS]), ids, torch.tensor([EOS])])
        found.append((tokens, model.logits(_alone(tokens))))
    return found


@torch.no_grad()
def require_same(expected: Sequence[tuple[Tensor, Tensor]], folder: Path) -> None:
    """Load `folder` through `AutoModelForMaskedLM`, and compare its logits with those that were expected.

    Args:
        expected: as of `reference_logits`, whose model need not be in memory any more.
        folder: a finished export.

    Raises:
        ValueError: it cannot be read, tensors are missing there or unknown to transformers, or the logits differ.
    """
    theirs = reload(folder, AutoModelForMaskedLM)
    for (tokens, logits), residues in zip(expected, LENGTHS, strict=True):
        require_close(logits, theirs(input_ids=tokens[None]).logits[0], residues)


def reload(folder: Path, kind: Any) -> Any:
    """The model of `folder`, float32 on the host, in evaluation mode.

    Args:
        folder: a finished export.
        kind: the class of transformers that loads it.

    Raises:
        ValueError: it cannot be read, or tensors are missing there or unknown to transformers.
    """
    unset_hf_deepspeed_config()  # in a process that prepared for ZeRO-3, transformers would cut what it loads
    try:
        theirs, info = kind.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, use_safetensors=True, trust_remote_code=False
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"the export was not kept: transformers cannot read it: {error}; {_REPORT}") from error
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if wrong := sorted(map(str, info[what])):
            raise ValueError(
                f"the export was not kept: transformers finds {len(wrong)} {what.replace('_', ' ')} in it, such as "
                f"{wrong[0]}; {_REPORT}"
            )
    return theirs.train(False)


def require_close(ours: Tensor, theirs: Tensor, residues: int, rounding: float = 0.0) -> None:
    """Refuse an export that gives other numbers than were trained.

    Args:
        ours: numbers that a model of ours computes of one protein.
        theirs: those of the export, in the same shape.
        residues: length of the protein, for the error.
        rounding: difference that float32 makes by itself where a number was scaled.

    Raises:
        ValueError: they differ by more than `CLOSE` of the largest.
    """
    largest, difference = float(ours.abs().max()), float((ours - theirs).abs().max())
    if not difference <= CLOSE * largest + rounding:
        raise ValueError(
            f"the export was not kept: transformers computes other logits with it than were trained (they differ "
            f"by {difference:.2g} on a protein of {residues} residues, where the largest is {largest:.3g}); {_REPORT}"
        )


def random_batch(residues: int, number: int) -> Tensor:
    """Ids of the residues of a made-up protein, ``(residues,)`` int64; another one for each `number`."""
    places = torch.arange(residues)
    chosen = (places * (7 + 2 * number) + places**2 // 3) % len(STANDARD_IDS)
    return torch.from_numpy(STANDARD_IDS).long()[chosen]


def _alone(tokens: Tensor) -> PackedSequences:
    """A batch of one sequence in a bin that it fills."""
    count = len(tokens)
    return PackedSequences(
        tokens=tokens,
        positions=torch.arange(count),
        documents=torch.zeros(count, dtype=torch.int64),
        cu_seqlens=torch.tensor([0, count, count], dtype=torch.int32),
        draw_keys=(0,),
        spans=((0, count),),
    )
