"""A model's contacts: fitted on some chains, scored on others, beside random weights of its shape and chance.

In: a model, and chains. Out: `ContactScores`, and their table; of one chain `ContactPairs`, its contacts beside those
that the model predicts, small enough for a file and a picture. Nothing is kept.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from data.homology.relatives import search_method
from pretrain.contacts.attention import eager, maps_of
from pretrain.contacts.chains import Chain
from pretrain.contacts.regression import (
    CHAINS,
    LONG_RANGE,
    SEPARATION,
    SHARES,
    fit,
    mean_interval,
    pairs_of,
    precisions,
    probabilities,
)
from pretrain.contacts.split import ChainSplit, split_chains
from pretrain.evaluate.results import CHANCE, CONTROL, ConfidenceInterval, ContactPairs, ContactScores
from pretrain.evaluate.scores import format_interval
from pretrain.model.initialization import initialise
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.weights.names import ContactHead
from zymogen.console.progress import ProgressBar

_SEED = 0
"""Seed of the weights of the control."""


def format_scores(found: ContactScores) -> list[str]:
    """The table, and what it is of."""
    few = "" if len(found.fitted_on) == CHAINS else f" (the published regression: {CHAINS})"
    constant = (
        f"No attention map of {found.model} says enough of contacts to outweigh the penalty: every weight of the "
        "regression is 0."
    )
    return [
        f"Regression fitted on {len(found.fitted_on)} chains{few}; scored on {len(found.chains)} chains of "
        f"{len(set(found.clusters))} clusters, none a relative at 30 % identity of those ({found.searched_by}).",
        f"Left out: {found.left_out_relatives} relatives, {found.undefined} without a contact at long range.",
        "",
        f"    long range (separation {LONG_RANGE} and more)   mean over chains   95 % interval",
        *(_row(f"{who}, {what}", found.means[who][what]) for who in (found.model, CONTROL) for what in SHARES),
        _row("chance, the share of pairs that touch", found.means[CHANCE][CHANCE]),
        *(["", constant] if found.is_constant else []),
    ]


def _row(title: str, found: ConfidenceInterval) -> str:
    ends = format_interval(found.low, found.high, "{:.3f}".format)
    return f"    {title:<42} {found.mean:>15.3f}   {ends}"


def score_contacts(
    model: MaskedLanguageModel, name: str, chains: Sequence[Chain], fit_on: int = CHAINS
) -> ContactScores:
    """Fit a regression on some chains, score it on the others, and do the same with random weights.

    Args:
        model: float32, whole, on any device.
        name: for the table.
        chains: distinct ones (`split.filter_chains`).
        fit_on: how many to fit on.

    Raises:
        ValueError: there are too few chains, or none of them has a contact at long range.
    """
    with ProgressBar(f"looking for relatives among {len(chains)} chains", after_s=2.0):
        chosen = split_chains(chains, fit_on)
    head, of_model = _precisions(model, chosen, name)
    defined = [place for place, found in enumerate(of_model) if found is not None]
    if not defined:
        raise ValueError(
            f"none of the {len(of_model)} chains to score has a contact at a separation of {LONG_RANGE} and more; give "
            "structures of whole domains"
        )
    control = MaskedLanguageModel(model.shape).eval()
    initialise(control, _SEED)
    _, of_control = _precisions(control.to(next(model.parameters()).device), chosen, CONTROL)
    rows = {name: of_model, CONTROL: of_control}
    values = {
        who: {what: [found[what] for found in of if found is not None] for what in SHARES} for who, of in rows.items()
    }
    values[CHANCE] = {CHANCE: [found[CHANCE] for found in of_model if found is not None]}
    middle = chosen.scored[defined[median_chain(values[name]["P@L"])]]
    with torch.no_grad():
        of_middle = maps_of(eager(model), middle.residues)
    groups = [chosen.groups[place] for place in defined]
    return ContactScores(
        model=name,
        fitted_on=tuple(chain.name for chain in chosen.fitted),
        left_out_relatives=chosen.left_out,
        undefined=len(chosen.scored) - len(defined),
        searched_by=search_method(),
        chains=tuple(chosen.scored[place].name for place in defined),
        clusters=tuple(groups),
        values=values,
        means={who: {what: mean_interval(each, groups) for what, each in of.items()} for who, of in values.items()},
        weight=head.weight,
        bias=head.bias,
        map=contact_pairs(middle, probabilities(head, of_middle)),
    )


def _precisions(
    model: MaskedLanguageModel, chosen: ChainSplit, name: str
) -> tuple[ContactHead, list[dict[str, float] | None]]:
    theirs = eager(model)
    count = len(chosen.fitted) + len(chosen.scored)
    with ProgressBar(f"attention maps of {count} chains, {name}", after_s=2.0), torch.no_grad():
        head = fit((chain, maps_of(theirs, chain.residues)) for chain in chosen.fitted)
        found = [precisions(chain, probabilities(head, maps_of(theirs, chain.residues))) for chain in chosen.scored]
    return head, found


def median_chain(values: Sequence[float]) -> int:
    """The place of a value in the middle of all: the lower one of two."""
    return int(np.argsort(values, kind="stable")[(len(values) - 1) // 2])


def contact_pairs(chain: Chain, probabilities: NDArray[np.float64]) -> ContactPairs:
    """The picture of a chain.

    Args:
        chain: whose contacts are the truth.
        probabilities: ``(L, L)``, or anything that rises with them.
    """
    pairs = pairs_of(chain, SEPARATION)
    both = np.stack(pairs, 1)
    best = np.argsort(-probabilities[pairs], kind="stable")[: int(chain.is_resolved.sum())]
    touching, predicted = (
        tuple((int(i), int(j)) for i, j in some) for some in (both[chain.contacts[pairs]], both[best])
    )
    return ContactPairs(chain.name, len(chain.residues), touching, predicted)
