"""Is one fine-tuned model better than another: task by task, on the same tested labels.

In: two runs with their predictions. Out: a `pretrain.compare` `ModelComparison`. Kept: nothing. Begin with `paired`.
"""
