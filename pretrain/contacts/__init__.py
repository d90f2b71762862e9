"""Contacts: how well attention maps say which residues touch, and the regression that says so.

In: a model, and structure files. Out: precisions at long range, and a contact head for an export. Kept: that head.
Begin with `chains`, which says what a contact is; `score` composes the rest for `python -m pretrain.contacts`.
"""
