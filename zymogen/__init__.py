"""The ground that data, pretraining and fine-tuning stand on, and the trainer.

The ground imports none of them; `trainer` imports batches and order from `data`.

`keyed_random` makes random numbers of keys, `compiled` compiles loops with numba, `onednn` multiplies on a CPU. `files`
writes files that appear whole, `console` prints progress and text, `settings` reads recipes and other files into
checked dataclasses. `processes` knows resources, launchers, signals and errors of a program, `command_line` is what all
commands share.

`import zymogen` is fast and gives the functions of `zymogen.api` (docs/api.md), which are imported when first used.
`python -m zymogen` is the command `zymogen`, all commands by one name.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zymogen.api import FineTunedModel as FineTunedModel
    from zymogen.api import Model as Model
    from zymogen.api import look as look
    from zymogen.api import open_bundle as open_bundle
    from zymogen.api import open_model as open_model
    from zymogen.api import read_run as read_run

__all__ = ["FineTunedModel", "Model", "look", "open_bundle", "open_model", "read_run"]


def __getattr__(name: str) -> Any:
    """A function of `zymogen.api`."""
    if name not in __all__:
        raise AttributeError(f"module 'zymogen' has no attribute {name!r}; it has {', '.join(__all__)}")
    from zymogen.own_packages import require_own

    require_own("data", "pretrain", "finetune")
    from zymogen import api

    return getattr(api, name)
