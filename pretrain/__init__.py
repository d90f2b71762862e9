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

from pathlib import Path
from runpy import run_path

# By its path, as a `zymogen.py` of the user's would be imported in place of the package.
run_path(str(Path(__file__).resolve().parents[1] / "zymogen" / "own_packages.py"))["require_own"]("zymogen", "data")
