"""What every test shares: checked shapes, a repeatable search, quick tests first."""

import os
from typing import runtime_checkable

import hypothesis
import pytest
import torch
from jaxtyping import install_import_hook
from streamlit.components.v2.types import ComponentRenderer

runtime_checkable(ComponentRenderer)  # what pages draw with is held against it

# Each annotated function of the package checks its types and shapes, from its first import on. An
# int may stand for a float; Self, of which beartype knows only in classes it decorates itself, may
# be anything.
CHECKED = """beartype.beartype(conf=beartype.BeartypeConf(
    is_pep484_tower=True,
    hint_overrides=beartype.FrozenDict({__import__("typing").Self: object}),
))"""
install_import_hook("krrviz", CHECKED)

hypothesis.settings.register_profile("krrviz", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("krrviz")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser is worth starting once the mathematics holds; CUDA is tested where it is."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip("no NVIDIA GPU found"))
