"""krrviz: a softmax transformer with hand-built weights solves kernel ridge regression."""

from krrviz.construction.certificate import Certificate, certify, construction_for
from krrviz.construction.stored import StoredError, load_construction, save_construction
from krrviz.construction.transformer import Pass, Transformer, predict, run
from krrviz.construction.weights import Construction, build
from krrviz.frames import fan_frame
from krrviz.problem import Problem
from krrviz.settings import PRESETS, Settings, SettingsError, View
from krrviz.solvers import SOLVERS, solve
from krrviz.tables import Table, TableError, read_csv
from krrviz.tasks import sample
from krrviz.trajectory import Step, Trajectory

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
