"""Adaptation: what of a pretrained encoder learns: nothing (frozen), adapters of low rank (LoRA), or all of it.

In: an encoder's weights and the recipe's `[adaptation]`. Out: what is trained and how fast, first weights, merged
weights, adapters of peft, cached features. Kept: files of features.

Read in this order: settings, lora (adapters in the model), adapt (what is trained, and its first weights), groups
(learning rates), adapter and peft_files (adapters of peft, in and out), vectors (what an encoder gives), features (its
cached vectors).
"""
