"""Pretraining: the encoder, the job of masked language modelling, and what is made of a finished run.

`python -m pretrain` with a recipe, or with sequences for which one is proposed, is the run: `job` is what
`zymogen.trainer` trains. `pretrain.model` is plain modules, which know nothing of engines. Imports `zymogen` and
`data`, never `finetune`.

    model        the encoder and what computes it         evaluate    scores on held-out proteins
    proposal     a recipe for sequences without one       report      a run as one HTML page
    export       what leaves a run: the exported model    card        the model card, made of what a run wrote
    contacts     which residues touch, by attention maps  compare     models by their scores on the same proteins
    push         a model on a hub                         inspect     what a run did, and whether that can be proven
    baselines    scores without a neural network

Beside the rooms stand `job` (masked language modelling), `recipe` (what is trained, composed of each room's settings),
`corpora` (its data, opened on every rank), `machine` (what a proposal knows of one), `auto_recipe` (from sequences to a
recipe), `timing` (the steps it times), `trained_model` (what commands open) and `summary` (the closing words).
"""

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_PATIENCE_S = 5.0


def require_own(*names: str) -> None:
    """Refuse packages of these names that are not this project's, such as a `data.py` in the working directory.

    Nobody can notice `python -m data` beside a `data.py`: Python runs that file itself.

    Raises:
        ImportError: one of the packages is another one, and this is no command.
        SystemExit: the same, of a command.
    """
    for name in names:
        found = find_spec(name)
        place = Path(found.origin).resolve() if found and found.origin else None
        if place == _ROOT / name / "__init__.py":
            continue
        text = (
            f"{place or name} hides the package {name!r} of this program; rename it, start in another folder, or set "
            "PYTHONSAFEPATH=1, with which Python looks for no modules in the working directory"
        )
        if sys.argv[0] != "-m":  # as it is while `python -m` looks for what to run
            raise ImportError(text)
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {text}", file=sys.stderr, flush=True)
        else:
            time.sleep(_PATIENCE_S)  # the launcher ends all ranks when the first has ended, be it before rank 0 spoke
        sys.exit(78)


if __name__ == "pretrain":  # which it is not when `finetune` runs this file by its path
    require_own("zymogen", "data")
