"""Is one fine-tuned model better than another: task by task, on the same tested labels.

In: two runs with their predictions. Out: a `Difference` for each task. Kept: nothing. Begin with `paired`.
"""
