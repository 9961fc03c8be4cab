"""krrviz: a softmax transformer with hand-built weights solves kernel ridge regression."""

import os

# Threads that wait for work are to sleep: others share the cores. Torch's OpenMP reads this once,
# when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from typing import TYPE_CHECKING

from krrviz.construction.certificate import Certificate, certify, construction_for
from krrviz.construction.predict import predict
from krrviz.construction.stored import StoredError, load_construction, save_construction
from krrviz.construction.transformer import Pass, Transformer, run
from krrviz.construction.weights import Construction, build
from krrviz.frames import fan_frame
from krrviz.problem import Problem
from krrviz.settings import PRESETS, Settings, SettingsError, View
from krrviz.solvers import SOLVERS, solve
from krrviz.tables import Table, TableError, read_csv
from krrviz.tasks import sample
from krrviz.trajectory import Step, Trajectory

if TYPE_CHECKING:
    from krrviz.estimator import TransformerKRR as TransformerKRR

__all__ = [
    "PRESETS",
    "SOLVERS",
    "Certificate",
    "Construction",
    "Pass",
    "Problem",
    "Settings",
    "SettingsError",
    "Step",
    "StoredError",
    "Table",
    "TableError",
    "Trajectory",
    "Transformer",
    "View",
    "build",
    "certify",
    "construction_for",
    "fan_frame",
    "load_construction",
    "predict",
    "read_csv",
    "run",
    "sample",
    "save_construction",
    "solve",
]


# scikit-learn is loaded where it is used, and need not be there otherwise. TransformerKRR is not in
# __all__: a star import would ask for it.
def __getattr__(name: str) -> object:
    if name == "TransformerKRR":
        from krrviz.estimator import TransformerKRR

        return TransformerKRR
    raise AttributeError(f"module 'krrviz' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), "TransformerKRR"])
