"""Checkpoints: written whole or not at all, each byte compared with its hash in the buffer from which it is used.

Read in this order: canonical (how JSON is written and checked), manifest (what is recorded), blocks (how files are
written, hashed and read), index (which file holds which elements), digests (numbers that no sharding changes), commit
(written under a temporary name, then published under the final one), load (find and verify), reader (what one or
several ranks read), restore (into a model and its optimizer; how parameters that are not trained are identified), best
(which one a job selects), retention (what is kept), free_space (whether the disk has room for that), writer (a copy,
and a thread that writes it beside training), saver (all of an attempt, and what happens if the disk refuses one),
save_schedule (how often one is due).
"""

from pretrain.checkpoint.canonical import InvalidCheckpointError
from pretrain.checkpoint.commit import SavePlan, commit
from pretrain.checkpoint.load import VerifiedCheckpoint, find, newest_valid, open_checkpoint, verify
from pretrain.checkpoint.manifest import CheckpointManifest, Topology, TrainerState, UnsupportedVersionError
from pretrain.checkpoint.restore import restore
from pretrain.checkpoint.retention import retain, sweep
from zymogen.processes.errors import CheckpointError, StorageError

__all__ = [
    "CheckpointError",
    "CheckpointManifest",
    "InvalidCheckpointError",
    "SavePlan",
    "StorageError",
    "Topology",
    "TrainerState",
    "UnsupportedVersionError",
    "VerifiedCheckpoint",
    "commit",
    "find",
    "newest_valid",
    "open_checkpoint",
    "restore",
    "retain",
    "sweep",
    "verify",
]
