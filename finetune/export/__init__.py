"""A fine-tuned model for transformers, or its adapter for peft: `python -m finetune.export`.

In: a bundle. Out: a folder that these libraries load without this project. Kept: that folder. `transformers` converts
the heads.
"""
