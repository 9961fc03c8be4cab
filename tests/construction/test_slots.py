"""Slots: every channel has one place, one name and a meaning."""

import pytest
import torch

from krrviz.construction.slots import MEANING, OPTIONAL, Slots


@pytest.mark.parametrize("d", [1, 2, 10])
def test_index_counts_the_names_in_order(d: int) -> None:
    slots = Slots(d)
    assert [slots.index[name] for name in slots.names] == list(range(len(slots)))


@pytest.mark.parametrize("d", [1, 2, 10])
@pytest.mark.parametrize("optional", [(), ("u", "b", "alpha"), OPTIONAL])
def test_inputs_come_first_and_the_rest_is_explained(d: int, optional: tuple[str, ...]) -> None:
    slots = Slots(d, optional)
    assert slots.names[:d] == tuple(f"x{i}" for i in range(1, d + 1))
    assert set(slots.names[d:]) == set(MEANING) - {"x"} - set(OPTIONAL) | set(optional)
    assert all(name in slots for name in optional)


@pytest.mark.parametrize(
    ("optional", "state", "inverse"),
    [
        (("u", "b", "alpha"), "alpha", "u"),
        (("v", "b", "alpha", "ahead"), "alpha", "v"),
        (("u", "fitted"), "fitted", "u"),
    ],
)
def test_state_and_inverse_are_the_channels_that_are_there(
    optional: tuple[str, ...], state: str, inverse: str
) -> None:
    slots = Slots(2, optional)
    assert (slots.state, slots.inverse) == (state, inverse)


def test_a_row_reads_the_channels_it_names() -> None:
    slots = Slots(3)
    stream = torch.arange(len(slots), dtype=torch.float64)
    row = slots.row(x2=3.0, alpha=-0.5)
    assert float(row @ stream) == 3 * slots.index["x2"] - 0.5 * slots.index["alpha"]


def test_a_row_of_an_unknown_channel_is_refused() -> None:
    with pytest.raises(KeyError, match="x4"):
        Slots(3).row(x4=1.0)
