"""The tour: every station's right answer is what its own numbers say."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from krrviz import SOLVERS, Settings, View, export, fan_frame
from krrviz.charts import Figure
from krrviz.fan import averaged
from krrviz.lessons import TOUR
from krrviz.settings import STATIONS
from krrviz.tables import assets

Frame = Any  # pandas' stubs cannot tell a column from a table


def ends(station: int) -> Frame:
    """Each method's error at the last step and the full context."""
    settings = TOUR[station - 1].settings
    rows: Frame = fan_frame(settings)
    return rows[(rows["step"] == settings.steps) & (rows["n"] == settings.n)].set_index("method")[
        "error"
    ]


def tables(station: int) -> dict[str, Frame]:
    it = TOUR[station - 1]
    shown = export.shown("tour", it.settings, View(station=station, **it.look))
    assert [*shown] == [*it.shown]
    return {
        name: next(iter(p.tables.values())) for name, p in shown.items() if isinstance(p, Figure)
    }


def test_there_are_as_many_stations_as_links_can_name() -> None:
    assert len(TOUR) == STATIONS == 8
    for station in TOUR:
        assert station.page in export.PAGES
        assert len(station.options) == 3
        assert Settings.read(station.settings.to_query()) == (station.settings, ())
        View(**station.look)


def test_the_first_station_is_a_local_average() -> None:
    curve = averaged(Settings())
    assert TOUR[0].options[TOUR[0].right] == "be flatter"
    assert np.ptp(curve.predictions) < 0.7 * np.ptp(curve.exact)
    # Nadaraya and Watson's formula, in plain NumPy, on standardised inputs.
    data: Frame = pd.read_csv(assets() / "datasets" / "motorcycle.csv")
    scale = data["time"].std(ddof=0)
    weights = np.exp(-np.square((curve.x[:, None] - curve.data_x) / scale) / (2 * 0.3**2))
    average = weights @ curve.data_y / weights.sum(1)
    np.testing.assert_allclose(curve.predictions[0], average, rtol=1e-9)


def test_the_second_differs_by_rounding() -> None:
    it = TOUR[1]
    shown = export.shown("tour", it.settings, View(station=2, **it.look))
    assert [*shown] == ["attention", "kernel", "difference"]
    gaps: Frame = export.rows(shown["difference"])
    assert gaps["value"].abs().max() < 1e-14
    assert it.right == 0


def test_the_third_slows_down() -> None:
    drawn = tables(3)
    rows = drawn["steps"]
    errors = rows[rows["method"] == "transformer"]["error"].to_numpy()
    factors = errors[1:] / errors[:-1]
    assert (factors < 1).all()
    assert factors[:3].max() < factors[-3:].min()


def test_the_fourth_divides_by_four() -> None:
    rows = tables(4)["width_error"]
    one = rows[rows["series"] == "plain: product error"].sort_values("segments")
    ratio = one["error"].to_numpy()[:-1] / one["error"].to_numpy()[1:]
    doubled = np.diff(np.log2(one["segments"].to_numpy()))
    np.testing.assert_allclose(ratio ** (1 / doubled), 4, rtol=0.1)
    assert TOUR[3].options[TOUR[3].right] == "4"


def test_at_the_fifth_conjugate_gradients_are_nearest_by_ten_powers_of_ten() -> None:
    last = ends(5)
    assert last.idxmin() == "conjugate_gradient"
    assert last.drop("conjugate_gradient").min() / last["conjugate_gradient"] > 1e9


def test_at_the_sixth_the_transformer_has_hardly_started() -> None:
    last = ends(6)
    assert last["transformer"] > 0.5
    assert last["gradient_descent"] == pytest.approx(0.05, abs=0.01)
    assert set(last.index) <= {"transformer", *SOLVERS}


def test_at_the_seventh_depth_grows_with_n_but_for_the_last_picture() -> None:
    drawn = tables(7)

    def steps(name: str) -> np.ndarray:
        rows = drawn[name]
        least = rows[rows["eps"] == rows["eps"].min()]
        return least.sort_values("series")["steps"].to_numpy()

    paper, ours = steps("depth_absolute_0"), steps("depth_per_sample_ridge")
    assert (np.diff(paper) > 0).all()
    assert paper[-1] > 2 * paper[0]
    assert (np.diff(ours) <= 0).all()


def test_at_the_eighth_only_the_trained_network_fans_out() -> None:
    drawn = tables(8)

    def spread(name: str) -> float:
        rows = drawn[name]
        full = rows[rows["n"] == rows["n"].max()].sort_values("step")["error"].to_numpy()
        return full[0] / full[-1]

    assert spread("layers_lens") > 3
    assert spread("layers_untrained_krr") < 1.2
