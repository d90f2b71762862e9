"""Flat batches of random proteins, models with random weights, and what a comparison of two models needs."""

import torch
from torch import Tensor, nn

from data.alphabet import CLS, EOS, MASK, PAD, STANDARD_IDS
from data.batches.batch import IGNORED, Batch, Targets

Document = tuple[list[int], list[int]]
"""Corrupted token ids and labels of one sequence."""

T = 320


def pack(bins: list[list[Document]], num_slots: int = T, most_documents: int = 6) -> Batch:
    """`Batch` of `bins`, each a list of documents that fit into `num_slots`."""
    tokens, labels, positions, documents, boundaries, spans = [], [], [], [], [], []
    for number, one_bin in enumerate(bins):
        start, first_document = number * num_slots, number * (most_documents + 1)
        for i, (ids, targets) in enumerate(one_bin):
            boundaries.append(start)
            spans.append((start, start + len(ids)))
            tokens += ids
            labels += targets
            positions += range(len(ids))
            documents += [first_document + i] * len(ids)
            start += len(ids)
        tail = (number + 1) * num_slots - start
        tokens += [PAD] * tail
        labels += [IGNORED] * tail
        positions += range(tail)
        documents += [first_document + len(one_bin)] * tail
        boundaries += [start] + [(number + 1) * num_slots] * (most_documents - len(one_bin))
    boundaries.append(len(bins) * num_slots)
    label_tensor = torch.tensor(labels)
    target_slots = (label_tensor != IGNORED).nonzero()[:, 0]
    return Batch(
        tokens=torch.tensor(tokens),
        positions=torch.tensor(positions),
        documents=torch.tensor(documents),
        cu_seqlens=torch.tensor(boundaries, dtype=torch.int32),
        targets=(Targets(target_slots, label_tensor[target_slots]),),
        draw_keys=tuple(number * 7919 - 3 for number in range(len(bins))),
        digests=torch.zeros(len(bins), dtype=torch.int64),
        spans=tuple(spans),
    )


def labels_of(batch: Batch) -> Tensor:
    """(S,) label of every slot, `IGNORED` where it is no target."""
    (targets,) = batch.targets
    return targets.in_slots(batch.tokens.numel())


def document(length: int, mask_ratio: float, seed: int) -> Document:
    """Random protein of `length` tokens with <cls> and <eos>; a share of its residues masked and to be predicted."""
    generator = torch.Generator().manual_seed(seed)
    residues = torch.from_numpy(STANDARD_IDS)[torch.randint(20, (length - 2,), generator=generator)]
    truth = [CLS, *residues.tolist(), EOS]
    masked = torch.randperm(length - 2, generator=generator)[: round(mask_ratio * (length - 2))] + 1
    ids, labels = list(truth), [IGNORED] * length
    for slot in masked.tolist():
        ids[slot], labels[slot] = MASK, truth[slot]
    return ids, labels


def mixed_bins() -> list[list[Document]]:
    """Two bins with pad tails: lengths 7 to 200, masked by 15 %, none, and much more than usual."""
    first = [(200, 0.15), (7, 0.4), (43, 0.0), (61, 0.15)]
    second = [(91, 0.5), (150, 0.15), (30, 0.1)]
    return [[document(n, ratio, 100 * n) for n, ratio in one] for one in (first, second)]


def perturb(model: nn.Module, seed: int = 0) -> None:
    """Random values everywhere, LayerNorms and biases too, so that nothing is trivially 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        # Wide enough that attention is far from uniform and logits from equal.
        std = 1.3 * parameter.shape[1] ** -0.5 if parameter.ndim == 2 else 0.1
        centre = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
        parameter.data.normal_(centre, std, generator=generator)


def relative(ours: Tensor, reference: Tensor) -> float:
    """Largest difference over the largest magnitude of the reference."""
    return float((ours - reference).detach().abs().max() / reference.detach().abs().max())


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def worst_gradient(ours: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    """Largest relative norm of the difference of one parameter's gradients."""
    assert ours.keys() == reference.keys()
    return max(float((ours[name] - reference[name]).norm() / reference[name].norm()) for name in reference)


def saved_bytes(model: nn.Module, batch: Batch) -> int:
    """Bytes that autograd keeps of one forward pass: each storage once, parameters apart."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, int] = {}

    def pack_hook(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack_hook, lambda t: t):
        loss = model(batch)
    assert loss.requires_grad
    return sum(found.values())
