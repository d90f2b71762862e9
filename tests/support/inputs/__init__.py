"""Inputs that tests share: proteins in every format, token stores, batches, and servers that fail on purpose."""
