"""The way to a hub: a finished folder, or a run, as one commit of a repository on the HuggingFace Hub.

In: a folder; the repository as it is. Out: the repository with the folder's files, in one commit; a tag. Kept: in the
run directory, alerts.jsonl.
Begin with `commit`, which makes the requests. `folder` says what is finished, `errors` sorts what may go wrong and how
long to wait, `zymogen.console.safe_text` keeps tokens out of every message, and `watch` follows a run.
"""
