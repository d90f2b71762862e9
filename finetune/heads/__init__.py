"""Heads: what turns an encoder's vectors into the numbers of a task.

In: vectors of slots, the documents that they lie in, a `Task`. Out: for each target its numbers, float32: a
z-score, a logit, or logits of classes. Kept: parameters. Begin with `head`; `pooling` makes one vector of a document,
`activation` turns numbers into predictions.
"""
