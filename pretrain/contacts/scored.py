"""A model's contacts: fitted on some chains, scored on others, beside random weights of its shape and chance.

In: a model, and chains. Out: `Scored`, with its table and its JSON. Nothing is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from data.progress_line import WorkLine
from pretrain.contacts.attention import eager, maps_of
from pretrain.contacts.chains import Chain
from pretrain.contacts.chosen import Chosen, choose
from pretrain.contacts.pictured import Pictured, pictured, typical
from pretrain.contacts.precision import LONG_RANGE, SHARES, Interval, interval, precisions
from pretrain.contacts.regression import CHAINS, fit, probabilities
from pretrain.model.initial import initialise
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.weights.contact_head import ContactHead

CONTROL = "random weights"
CHANCE = "chance"
_SEED = 0
"""Seed of the weights of the control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Precisions of the chains that were scored."""

    name: str
    """The model's."""
    chosen: Chosen
    head: ContactHead
    """Fitted on the model's attention maps."""
    chains: list[str]
    """Names of the chains that have a contact at long range; the others have no precision."""
    groups: list[int]
    """(chains,) a number that relatives share."""
    values: dict[str, dict[str, list[float]]]
    """Model or control -> name of a precision -> (chains,) values; chance has one that is called so."""
    map: Pictured
    """Contacts and predictions of the chain whose P@L is in the middle of all."""

    def interval(self, who: str, what: str) -> Interval:
        """Mean over chains of one of `values`."""
        return interval(self.values[who][what], self.groups)

    def lines(self) -> list[str]:
        """The table, and what it is of."""
        chosen, undefined = self.chosen, len(self.chosen.scored) - len(self.chains)
        few = "" if len(chosen.fitted) == CHAINS else f" (the published regression: {CHAINS})"
        said = [
            f"Regression fitted on {len(chosen.fitted)} chains{few}; scored on {len(self.chains)} chains of "
            f"{len(set(self.groups))} clusters, none a relative at 30 % identity of those ({chosen.searched_by}).",
            f"Left out: {chosen.left_out} relatives, {undefined} without a contact at long range.",
            "",
            f"    long range (separation {LONG_RANGE} and more)   mean over chains   95 % interval",
        ]
        for who in (self.name, CONTROL):
            said += [self._row(f"{who}, {what}", self.interval(who, what)) for what in SHARES]
        said.append(self._row("chance, the share of pairs that touch", self.interval(CHANCE, CHANCE)))
        if not any(self.head.weight):
            said += [
                "",
                f"No attention map of {self.name} says enough of contacts to outweigh the penalty: every weight of the "
                "regression is 0.",
            ]
        return said

    @staticmethod
    def _row(title: str, found: Interval) -> str:
        ends = "unknown" if found.low != found.low else f"{found.low:.3f} to {found.high:.3f}"
        return f"    {title:<42} {found.mean:>15.3f}   {ends}"

    def as_dict(self) -> dict[str, Any]:
        """Everything, for a file of JSON; an unknown end of an interval is None."""

        def ends(found: Interval) -> dict[str, float | None]:
            return {name: value if value == value else None for name, value in found._asdict().items()}

        return {
            "format": "zymogen.contacts/1",
            "model": self.name,
            "fitted_on": [chain.name for chain in self.chosen.fitted],
            "left_out_relatives": self.chosen.left_out,
            "searched_by": self.chosen.searched_by,
            "chains": self.chains,
            "clusters": self.groups,
            "values": self.values,
            "means": {who: {what: ends(self.interval(who, what)) for what in of} for who, of in self.values.items()},
            "head": self.head.as_entry(),
            "map": self.map.as_dict(),
        }


def score(model: MaskedLanguageModel, name: str, chains: Sequence[Chain], fit_on: int = CHAINS) -> Scored:
    """Fit a regression on some chains, score it on the others, and do the same with random weights.

    Args:
        model: float32, whole, on any device.
        name: for the table.
        chains: distinct ones (`chosen.usable`).
        fit_on: how many to fit on.

    Raises:
        ValueError: there are too few chains, or none of them has a contact at long range.
    """
    with WorkLine(f"looking for relatives among {len(chains)} chains", after_s=2.0):
        chosen = choose(chains, fit_on)
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
    middle = chosen.scored[defined[typical(values[name]["P@L"])]]
    with torch.no_grad():
        of_middle = maps_of(eager(model, str(next(model.parameters()).device)), middle.residues)
    return Scored(
        name=name,
        chosen=chosen,
        head=head,
        chains=[chosen.scored[place].name for place in defined],
        groups=[chosen.groups[place] for place in defined],
        values=values,
        map=pictured(middle, probabilities(head, of_middle)),
    )


def _precisions(
    model: MaskedLanguageModel, chosen: Chosen, name: str
) -> tuple[ContactHead, list[dict[str, float] | None]]:
    theirs = eager(model, str(next(model.parameters()).device))
    count = len(chosen.fitted) + len(chosen.scored)
    with WorkLine(f"attention maps of {count} chains, {name}", after_s=2.0), torch.no_grad():
        head = fit((chain, maps_of(theirs, chain.residues)) for chain in chosen.fitted)
        found = [precisions(chain, probabilities(head, maps_of(theirs, chain.residues))) for chain in chosen.scored]
    return head, found
