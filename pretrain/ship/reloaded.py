"""What was written is what was trained: an export is loaded as its users load it, and compared before it has its name.

In: a model of ours, and the folder of its export. Out: an error, or nothing. Kept: nothing.
"""

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

_LENGTHS = (12, 61, 150)
"""Residues of the sequences that both sides compute."""


@torch.no_grad()
def require_same(model: MaskedLanguageModel, folder: Path) -> None:
    """Load `folder` through `AutoModelForMaskedLM`, and compare its logits with those of `model`.

    Args:
        model: float32 on the host, in evaluation mode, with weights rounded as those of the folder are.
        folder: a finished export.

    Raises:
        ValueError: it cannot be read, tensors are missing there or unknown to transformers, or the logits differ.
    """
    unset_hf_deepspeed_config()  # in a process that prepared for ZeRO-3, transformers would cut what it loads
    try:
        loaded: Any = AutoModelForMaskedLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, use_safetensors=True, trust_remote_code=False
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"the export was not kept: transformers cannot read it: {error}; report this with the versions in run.json"
        ) from error
    theirs, info = loaded[0].train(False), loaded[1]
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if wrong := sorted(map(str, info[kind])):
            raise ValueError(
                f"the export was not kept: transformers finds {len(wrong)} {kind.replace('_', ' ')} in it, such as "
                f"{wrong[0]}; report this with the versions in run.json"
            )
    for number, residues in enumerate(_LENGTHS):
        tokens = _protein(residues, number)
        ours, expected = model.logits(_alone(tokens)), theirs(input_ids=tokens[None]).logits[0]
        largest, difference = float(ours.abs().max()), float((ours - expected).abs().max())
        if not difference <= CLOSE * largest:
            raise ValueError(
                f"the export was not kept: transformers computes other logits with it than were trained (they differ "
                f"by {difference:.2g} on a protein of {residues} residues, where the largest is {largest:.3g}); report "
                "this with the versions in run.json"
            )


def _protein(residues: int, number: int) -> Tensor:
    """Token ids of a made-up protein ``(residues + 2,)``, a seventh of it masked."""
    places = torch.arange(residues)
    ids = torch.from_numpy(STANDARD_IDS).long()[(places * (7 + 2 * number) + places**2 // 3) % len(STANDARD_IDS)]
    ids[number + 1 :: 7] = MASK
    return torch.cat([torch.tensor([CLS]), ids, torch.tensor([EOS])])


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
