"""Types of tasks: what a label is, how it is learned, predicted and scored.

In: settings of a task. Out: a `TaskType`, of which everything else asks what depends on the type. Begin with
`task_type`, the base class of ours and of the user's; `registry` has the names. Torch is imported where it computes.
"""
