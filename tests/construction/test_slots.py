"""Slots: every channel has one place, one name and a meaning."""

import pytest
import torch

from krrviz.construction.slots import MEANING, Slots


@pytest.mark.parametrize("d", [1, 2, 10])
def test_index_counts_the_names_in_order(d: int) -> None:
    slots = Slots(d)
    assert [slots.index[name] for name in slots.names] == list(range(len(slots)))


@pytest.mark.parametrize("d", [1, 2, 10])
def test_inputs_come_first_and_the_rest_is_explained(d: int) -> None:
    names = Slots(d).names
    assert names[:d] == tuple(f"x{i}" for i in range(1, d + 1))
    assert set(names[d:]) == set(MEANING) - {"x"}


def test_a_row_reads_the_channels_it_names() -> None:
    slots = Slots(3)
    stream = torch.arange(len(slots), dtype=torch.float64)
    row = slots.row(x2=3.0, alpha=-0.5)
    assert float(row @ stream) == 3 * slots.index["x2"] - 0.5 * slots.index["alpha"]


def test_a_row_of_an_unknown_channel_is_refused() -> None:
    with pytest.raises(KeyError, match="x4"):
        Slots(3).row(x4=1.0)
