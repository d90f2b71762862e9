"""What the columns of a table are: each by itself, how they belong together, and the split that they make.

Read `evidence` first; `finetune.look.roles` decides by all of them. In: columns, in an order of their own. Out: roles
with reasons. Kept: nothing.
"""
