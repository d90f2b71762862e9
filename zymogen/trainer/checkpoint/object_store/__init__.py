"""Checkpoints under a URL of an object store, beside those of the run directory.

In: the files of a save, and where they belong. Out: a checkpoint that exists once its manifest does, and that any
machine can fetch. Kept: nothing here; the store keeps the newest checkpoints, as the run directory does.

    s3://bucket/run/step-000012000-a3-00000007/     one save: step, attempt, number of the save in it
        model/00000.safetensors ... trainer.json       as in the run directory
        records.json.gz                                run.json, recipe.toml and metrics.jsonl of then
        manifest.json                                  last, and only if there is none: with it the checkpoint exists
    s3://bucket/run/attempts/000003                    a start that has claimed its number, with what it knows of all

An object store has no rename, and its objects do not appear in the order of their requests for all readers. So nothing
is renamed and nothing points at the newest checkpoint: a name is used by one save only, and a save without a manifest
is none.
"""
