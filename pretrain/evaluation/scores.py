"""The results of a validation of masked language modelling, as the loop and the closing words read them.

In: an `Evaluation` for each corruption. Out: numbers, a line, the number that ranks checkpoints. Kept: nothing.
"""

from dataclasses import dataclass

from pretrain.evaluation.corruptions import TITLES
from pretrain.evaluation.evaluate import Evaluation


@dataclass(frozen=True, slots=True)
class MaskedLanguageScores:
    """The scores under each corruption."""

    evaluations: dict[str, Evaluation]
    """By the names of `evaluate.CORRUPTIONS`."""
    by_cluster: bool
    """Whether clusters were held out whole; if not, proteins that equal none of the training proteins were."""

    def numbers(self) -> dict[str, dict[str, float]]:
        """All scores, by corruption and name."""
        return {name: evaluation.numbers() for name, evaluation in self.evaluations.items()}

    def line(self) -> str:
        """One line with each perplexity and the unigram's."""
        each = (f"{TITLES[name]} {s.perplexity:.2f} (unigram {s.unigram:.2f})" for name, s in self.evaluations.items())
        return f"validation perplexity: {', '.join(each)}"

    @property
    def rank_metric(self) -> float:
        """Perplexity under mask-all, where nothing can be copied."""
        return self.evaluations["mask_all"].perplexity
