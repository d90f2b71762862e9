"""A head as a class: which levels it is for, how a sequence becomes one vector, the module that it builds.

In: the recipe's section. Out: modules. Kept: nothing. `Head` is the base class of ours and of the user's
(docs/extending.md). Its attributes can be read without importing torch.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from finetune.tasks.settings import Level, TaskSettings
from zymogen.settings import extension
from zymogen.settings.options import NoOptions
from zymogen.settings.section import Section

if TYPE_CHECKING:
    from torch import nn

    from finetune.heads.settings import HeadSettings
    from pretrain.model.presets import EsmShape


class Head(ABC):
    """The heads of all tasks of a run.

    Args:
        settings: the recipe's section.
        options: what `heads.options` says, as `Options`.
    """

    Options: ClassVar[type[Section]] = NoOptions
    """A dataclass of settings of its own."""
    levels: ClassVar[frozenset[Level]] = frozenset({"sequence", "residue"})
    """What it predicts."""
    default_pooling: ClassVar[str] = "mean"
    """How a sequence becomes one vector where a recipe does not say."""
    exports_to_transformers: ClassVar[bool] = False
    """Whether it is exactly a head of transformers' classes. It then reads vectors that are not standardised."""

    def __init__(self, settings: "HeadSettings", options: Section) -> None:
        self.settings, self.options = settings, options

    def require_level(self, task: TaskSettings) -> None:
        """Refuse a task that it is not for.

        Raises:
            ValueError: which level of which task.
        """
        if task.level not in self.levels:
            raise ValueError(
                f"heads.form is {self.settings.form!r}, which has no head for the level {task.level!r} of task "
                f"{task.name!r}; set heads.form to 'mlp'"
            )

    @abstractmethod
    def build(self, shape: "EsmShape", hidden: int, width: int, level: Level) -> "nn.Module":
        """Return the head of one task.

        Args:
            shape: of the encoder; its vectors have `shape.dim` channels.
            hidden: `heads.hidden`, or the encoder's width.
            width: numbers for each vector.
            level: one of `levels`.

        Returns:
            Of vectors ``(m, dim)`` it gives ``(m, width)``, in float32 at least, as `finetune.heads.head.OutputMap`
            does. Of pairs it also takes the rows ``(n,)`` of both residues, and gives ``(n, width)``.
        """


class Mlp(Head):
    """LayerNorm and two maps with a GELU between them."""

    levels = frozenset({"sequence", "residue", "pair"})

    def build(self, shape: "EsmShape", hidden: int, width: int, level: Level) -> "nn.Module":
        """Return it; that of pairs reads both residues."""
        from finetune.heads.head import MlpHead, PairHead

        return PairHead(shape, hidden, width) if level == "pair" else MlpHead(shape, hidden, width)


class Transformers(Head):
    """The heads of EsmForSequenceClassification and EsmForTokenClassification."""

    default_pooling = "begin"
    exports_to_transformers = True

    def build(self, shape: "EsmShape", hidden: int, width: int, level: Level) -> "nn.Module":
        """Return that of sequences, or the single map of residues."""
        from finetune.heads.head import ClassificationHead, OutputMap

        return ClassificationHead(shape, width) if level == "sequence" else OutputMap(shape.dim, width)


_OWN: dict[str, type[Head]] = {"mlp": Mlp, "transformers": Transformers}


def head_kind(settings: "HeadSettings") -> Head:
    """Return the head of a recipe, its options checked.

    Raises:
        ValueError: it is none of ours, and cannot be imported, or is no `Head`; an option is unknown or not allowed.
    """
    kind = extension.load("heads.form", settings.form, Head, _OWN)  # type: ignore[type-abstract]
    if not extension.is_external(settings.form):
        return kind(settings, NoOptions())
    from zymogen.settings.toml_file import check

    return kind(settings, check(kind.Options, settings.options, "heads.options"))
