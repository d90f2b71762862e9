"""Pretraining: the encoder, one training step, the loop around it, engines, checkpoints and export.

`python -m pretrain` with a recipe, or with sequences for which one is proposed, is the run. `pretrain.model` is plain
modules, which know nothing of engines; `pretrain.step` is one update, whole; `pretrain.loop` takes steps for any
`pretrain.job`, of which masked language modelling is one (`masked_language_job`). Imports `data`, never `finetune`.

    model        the encoder and what computes it         engine      how a run is spread over processes
    optimizer    parameter groups, AdamW, Muon, the rate  checkpoint  one format for every engine, whole or not at all
    evaluation   scores on held-out proteins              run         the directory of a run, and what is written there
    telemetry    how fast a run is                        ship        what leaves a run: the exported model
    proposal     a recipe for sequences without one       report      a run as one HTML page
    contacts     which residues touch, by attention maps  card        the model card, made of what a run wrote

Beside the rooms stand `recipe` (what is trained, composed of each room's settings), `corpus` (its data, opened on
every rank), `proposed` (from sequences to a recipe) and `timing` (the steps it times), `screen` (what a run tells while
it trains), `saves` (when a checkpoint is written, and what happens if the disk refuses it), `summary` (the closing
words) and `export` (the command that exports a run, by `ship`).
"""
