"""Processes: their environment, resources and parent; launchers, signals, errors and exit statuses of programs.

In: variables, `/proc` and control groups. Out: facts about the machine and the launch. State: signals that arrived
(`signals`). Read `exit_classes` first: it lists how a program may end.
"""
