"""Fan: every method's fan, the errors by step, and a fit over the data of one input."""

from __future__ import annotations

from krrviz import charts
from krrviz.charts import Figure
from krrviz.fan import Curve, Fan
from krrviz.frames import REFERENCES, TITLES, curve_rows, fan_rows, step_rows, thinned, titled
from krrviz.settings import Settings


def figures(
    result: Fan, curve: Curve | None, settings: Settings, floor: float
) -> dict[str, Figure]:
    """All of the page; ``curve`` is the first method's fit, for problems with one input."""
    shown = errors(result, settings, floor)
    if curve is not None:
        fitted, exact, data = curve_rows(curve)
        shown["prediction"] = charts.prediction(
            thinned(fitted),
            exact,
            data,
            series=TITLES[settings.methods[0]],
            x_title=curve.x_label,
            y_title=curve.y_label,
        )
    return shown


def average(curve: Curve) -> dict[str, Figure]:
    """One softmax's average over the data of one input, beside exact KRR."""
    fitted, exact, data = curve_rows(curve)
    drawn = charts.prediction(
        fitted,
        exact,
        data,
        series="Nadaraya–Watson",
        x_title=curve.x_label,
        y_title=curve.y_label,
    )
    return {"average": drawn}


def errors(
    result: Fan, settings: Settings, floor: float, fan: str = "fan_", steps: str = "steps"
) -> dict[str, Figure]:
    """Each method's fan, named ``fan`` and the method, and the errors by step, named ``steps``."""
    against, domain = REFERENCES[settings.reference], (floor, 2.0)
    shown = {
        f"{fan}{method}": charts.fan(rows, against=against, domain=domain)
        for method, rows in titled(thinned(fan_rows(result))).groupby("method", sort=False)
    }
    rows = titled(thinned(step_rows(result)))
    return {**shown, steps: charts.steps(rows, against=against, domain=domain)}
