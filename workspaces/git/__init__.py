"""All of Forge's git: the one package of the product that starts it.

Knows no models, settings or database. ``Repository`` is where a repository is and what its commits say; the verbs take
one as their first argument. How git is started is in ``runner``, why it is safe in a hostile repository too.
"""

from workspaces.git.candidates import outside_scope, seal
from workspaces.git.checkouts import add_checkout, find_checkout, list_checkouts, move_checkout, remove_checkout
from workspaces.git.inventory import inventory
from workspaces.git.landing import land, landing_proof, landing_verdict, turn_back, verdict_after_crash
from workspaces.git.remotes import knows_remote, push
from workspaces.git.replay import replay
from workspaces.git.repository import Repository
from workspaces.git.runner import Git
from workspaces.git.values import (
    Blob,
    Branch,
    Change,
    ChangedPath,
    Checkout,
    Identity,
    Inventory,
    LandingProof,
    LogLine,
    Mode,
    Moment,
    PushOutcome,
    PushResult,
    Removal,
    Replay,
    SealedCandidate,
    Text,
    Verdict,
    Worktree,
    shown,
)
from workspaces.git.working import blocked_paths, dirty_paths

__all__ = [
    "Blob",
    "Branch",
    "Change",
    "ChangedPath",
    "Checkout",
    "Git",
    "Identity",
    "Inventory",
    "LandingProof",
    "LogLine",
    "Mode",
    "Moment",
    "PushOutcome",
    "PushResult",
    "Removal",
    "Replay",
    "Repository",
    "SealedCandidate",
    "Text",
    "Verdict",
    "Worktree",
    "add_checkout",
    "blocked_paths",
    "dirty_paths",
    "find_checkout",
    "inventory",
    "knows_remote",
    "land",
    "landing_proof",
    "landing_verdict",
    "list_checkouts",
    "move_checkout",
    "outside_scope",
    "push",
    "remove_checkout",
    "replay",
    "seal",
    "shown",
    "turn_back",
    "verdict_after_crash",
]
