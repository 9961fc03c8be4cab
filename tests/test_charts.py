"""Charts: specifications are sound, hold the numbers given, and say what they show."""

import json
import math

import altair as alt
import pandas as pd
import pytest
import vl_convert

from krrviz import charts

KEYS = list(charts.STYLES)
TITLES = {key: key.replace("_", " ").capitalize() for key in KEYS}


def fan_frame(method: str, *, steps: int = 4, factor: float = 0.5) -> pd.DataFrame:
    """Return a fan whose error falls by `factor` a step, the slower the longer the context."""
    rows = [
        (method, TITLES[method], step, n, factor ** (step / math.log2(2 * n)))
        for n in (2, 8, 64)
        for step in range(steps + 1)
    ]
    return pd.DataFrame(rows, columns=["method", "title", "step", "n", "error"])


def step_frame(methods: list[str], errors: dict[str, list[float]]) -> pd.DataFrame:
    rows = [
        (method, TITLES[method], step, error)
        for method in methods
        for step, error in enumerate(errors[method])
    ]
    return pd.DataFrame(rows, columns=["method", "title", "step", "error"])


def prediction_figure() -> charts.Figure:
    x = [0.0, 0.5, 1.0]
    exact = pd.DataFrame({"x": x, "prediction": [1.0, 2.0, 3.0]})
    curve = pd.DataFrame(
        [
            (t, at, y * t / 2)
            for t in range(3)
            for at, y in zip(x, exact["prediction"], strict=True)
        ],
        columns=["step", "x", "prediction"],
    )
    data = pd.DataFrame({"x": [0.1, 0.9], "y": [-4.0, 6.0]})
    return charts.prediction(
        curve, exact, data, series="Transformer", x_title="time (ms)", y_title="acceleration (g)"
    )


def alpha_frame(channel: list[float], solver: list[float]) -> pd.DataFrame:
    rows = [
        (method, title, step, alpha)
        for method, title, values in (
            ("transformer", "α channel", channel),
            ("preconditioned_richardson", "Richardson's α", solver),
        )
        for step, alpha in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["method", "title", "step", "state"])


def squares_figure(operands: list[float]) -> charts.Figure:
    """Hinges at −1, 0 and 1, so chords that touch s² there; operands s₊ by step, and s₋ = −s₊."""
    marks = pd.DataFrame(
        [
            (step, sign, side * s, abs(s))
            for sign, side in (("s₊", 1), ("s₋", -1))
            for step, s in enumerate(operands)
        ],
        columns=["step", "sign", "s", "square"],
    )
    s = [-1.0, -0.5, 0.0, 0.5, 1.0]
    curve = pd.DataFrame({"s": s, "made": [abs(x) for x in s], "exact": [x * x for x in s]})
    return charts.squares(marks, curve, product=("u", "α"), scales=(2.0, 2.0))


FIGURES = {
    "states": charts.states(
        alpha_frame([0.0, 2.0, 3.0], [0.0, 2.0, 3.5]), symbol="α", token="token 5"
    ),
    "states, diverging": charts.states(
        alpha_frame([0.0, 1e200, -math.inf], [0.0, 2.0, 3.0]), symbol="α", token="token 5"
    ),
    "states, no solver": charts.states(alpha_frame([0.0, 0.0], []), symbol="α", token="token 0"),
    "states, one step": charts.states(alpha_frame([0.0], [0.0]), symbol="α", token="token 5"),
    "squares": squares_figure([0.0, 0.5, 1.0]),
    "squares, every operand beyond them": squares_figure([]),
    "fan": charts.fan(fan_frame("transformer")),
    "fan, beyond the frame": charts.fan(fan_frame("conjugate_gradient", factor=1e-9)),
    "fan, diverging": charts.fan(fan_frame("gradient_descent", factor=1e40)),
    "fan, one step": charts.fan(fan_frame("nesterov", steps=0)),
    "fan, wide range": charts.fan(fan_frame("transformer"), domain=(1e-16, 1e2)),
    "steps": charts.steps(step_frame(KEYS, {key: [1.0, 0.5, 1e-9] for key in KEYS})),
    "prediction": prediction_figure(),
}


@pytest.fixture(params=FIGURES)
def figure(request: pytest.FixtureRequest) -> charts.Figure:
    return FIGURES[request.param]


def draw(figure: charts.Figure, **params: object) -> str:
    """Return the figure as SVG, with parameters such as the step set."""
    spec = figure.chart().to_dict(validate=False)
    spec["params"] = [{**p, "value": params.get(p["name"], p["value"])} for p in spec["params"]]
    return vl_convert.vegalite_to_svg(spec)


def test_specifications_are_valid(figure):
    alt.LayerChart.from_dict(figure.chart().to_dict())


def test_specifications_hold_no_rows_and_compile(figure):
    assert "datasets" not in figure.spec
    assert len(json.dumps(figure.spec)) < 20_000
    assert "NaN" not in draw(figure)


def test_titles_axes_and_text(figure):
    spec = figure.spec
    assert spec["title"]
    assert figure.alt.startswith(spec["title"])
    assert any(character.isdigit() for character in figure.alt)
    axes = [layer["encoding"] for layer in spec["layer"]]
    for axis in ("x", "y"):
        assert any(encoding.get(axis, {}).get("title") for encoding in axes)


def test_all_figures_share_the_parameter_step(figure):
    params = {param["name"]: param["value"] for param in figure.spec["params"]}
    stepped = figure.tables[figure.spec["usermeta"]["tables"][0]]["step"]
    assert params["step"] == (stepped.max() if len(stepped) else 0)


def test_rows_arrive_with_every_digit_and_nothing_json_cannot_hold():
    table = pd.DataFrame({"step": [0, 1, 2, 3], "error": [1 / 3, math.inf, math.nan, 1e-300]})
    columns = charts.columns(table)
    assert columns == {"step": [0, 1, 2, 3], "error": [1 / 3, None, None, 1e-300]}
    json.dumps(columns, allow_nan=False)


def test_standalone_charts_hold_the_rows(figure):
    datasets = figure.chart().to_dict(validate=False)["datasets"]
    json.dumps(datasets, allow_nan=False)
    assert {name: len(rows) for name, rows in datasets.items()} == {
        name: len(table) for name, table in figure.tables.items()
    }


def y_domains(figure: charts.Figure) -> set[str]:
    encodings = [layer["encoding"].get("y", {}) for layer in figure.spec["layer"]]
    return {json.dumps(y["scale"]["domain"]) for y in encodings if "scale" in y}


def test_rows_are_those_of_the_browsers_file_at_full_precision():
    figure = charts.Figure(
        {"usermeta": {"tables": ["curve", "data"]}},
        {
            "curve": pd.DataFrame({"step": [0, 1], "x": [1 / 3, 2.0], "y": [1.0, math.inf]}),
            "data": pd.DataFrame({"x": [0.1], "label": ["a, b"]}),
            "edges": pd.DataFrame({"row": [1]}),  # drawn, but no data
        },
        "",
    )
    assert figure.rows().to_csv(index=False).splitlines() == [
        "table,step,x,y,label",
        "curve,0,0.3333333333333333,1.0,",
        "curve,1,2.0,,",
        'data,,0.1,,"a, b"',
    ]
    alone = charts.Figure({"usermeta": {"tables": ["curve"]}}, figure.tables, "")
    assert alone.rows().to_csv(index=False).splitlines() == [
        "step,x,y", "0,0.3333333333333333,1.0", "1,2.0,"
    ]  # fmt: skip
    assert math.isinf(figure.tables["curve"].y[1])  # what is drawn stays as it is


def test_error_axes_share_one_domain():
    assert y_domains(FIGURES["fan"]) == y_domains(FIGURES["steps"]) == {"[0.001, 2.0]"}
    assert y_domains(FIGURES["fan, wide range"]) == {"[1e-16, 100.0]"}


def test_the_current_step_is_named_in_the_fan():
    assert ">t = 3<" in draw(FIGURES["fan"], step=3)
    assert ">t = 3<" not in draw(FIGURES["fan"], step=2)


@pytest.mark.parametrize(
    ("name", "label"), [("fan, beyond the frame", "↓ to 1e-18"), ("fan, diverging", "↑ to 1e80")]
)
def test_curves_beyond_the_frame_are_labelled_at_its_edge(name, label):
    assert f">{label}<" in draw(FIGURES[name])


def test_errors_that_are_no_numbers_are_drawn_as_divergence():
    errors = {"gradient_descent": [1.0, 1e200, math.inf, math.nan]}
    figure = charts.steps(step_frame(["gradient_descent"], errors))
    assert ">Gradient descent ↑ overflows<" in draw(figure)
    assert "overflow at step 3" in figure.alt


def test_lines_inside_the_frame_get_no_edge_label():
    assert FIGURES["fan"].tables["edges"].empty


def test_alternative_texts_hold_the_values():
    assert "At n = 64: 1 at step 0, 0.82 at step 2, 0.67 at step 4." in FIGURES["fan"].alt
    assert "Transformer: 1 at step 0, 0.5 at step 1, 1e-09 at step 2" in FIGURES["steps"].alt
    assert "2 context points" in FIGURES["prediction"].alt
    assert "3 at step 0, 1.5 at step 1, 0 at step 2" in FIGURES["prediction"].alt


def test_alphas_frame_the_solver_and_a_divergence_leaves_the_frame():
    figure = FIGURES["states, diverging"]
    params = {param["name"]: param["value"] for param in figure.spec["params"]}
    assert params["low"] < 0 < 3 < params["high"] < 4
    assert "α channel: 0 at step 0, 1e+200 at step 1, overflow at step 2" in figure.alt
    assert "Richardson's α: 0 at step 0, 2 at step 1, 3 at step 2" in figure.alt


def test_alphas_name_only_what_is_there():
    names = [entry["title"] for entry in FIGURES["states, no solver"].spec["usermeta"]["legend"]]
    assert names == ["α channel"]


def test_squares_mark_the_operands_of_the_current_step():
    def marked(step: int) -> tuple[int, int]:
        drawn = draw(FIGURES["squares"], step=step)
        return drawn.count("sign: s₊; s:"), drawn.count("sign: s₋; s:")

    assert marked(1) == marked(2) == (1, 1)
    assert "s: 0.5; square: 0.5" in draw(FIGURES["squares"], step=1)
    assert "s: 1; square: 1" in draw(FIGURES["squares"], step=2)
    assert "distance from s² drawn: 0.25" in FIGURES["squares"].alt  # |s| − s² at a half


def test_squares_say_how_operands_are_made():
    legend = {e["key"]: e["title"] for e in FIGURES["squares"].spec["usermeta"]["legend"]}
    assert legend["s₊"] == "s₊ = 2 u + α/2"
    assert legend["s₋"] == "s₋ = 2 u − α/2"


@pytest.mark.parametrize("name", ["fan", "steps", "states"])
def test_steps_and_lengths_are_whole(name):
    x = {json.dumps(layer["encoding"].get("x")) for layer in FIGURES[name].spec["layer"]}
    assert any('"tickMinStep": 1' in axis for axis in x)


def test_hidden_methods_are_not_drawn():
    shown, hidden = (draw(FIGURES["steps"], hidden=keys) for keys in ([], ["transformer"]))
    assert "Transformer ↓" in shown
    assert "Transformer ↓" not in hidden


def test_predictions_frame_the_data_and_the_exact_answer_only():
    params = {param["name"]: param["value"] for param in FIGURES["prediction"].spec["params"]}
    assert params["low"] < -4 < 6 < params["high"] < 7


def test_new_data_leave_the_structure_of_a_chart_alone():
    one, other = (charts.fan(fan_frame("nesterov", steps=t)).spec for t in (4, 9))
    assert {**one, "params": 0} == {**other, "params": 0}


def luminance(color: str) -> float:
    """Return the relative luminance of WCAG 2."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("paper", charts.PAPER.values(), ids=charts.PAPER)
@pytest.mark.parametrize("method", KEYS)
def test_methods_stand_out_from_the_paper(method, paper):
    assert contrast(charts.STYLES[method].color, paper) >= 3


@pytest.mark.parametrize("part", ["color", "dash", "shape"])
def test_methods_differ_in_colour_dash_and_shape(part):
    assert len({getattr(style, part) for style in charts.STYLES.values()}) == len(KEYS)


@pytest.mark.parametrize("mode", charts.RAMP)
def test_later_steps_stand_out_more(mode):
    contrasts = [contrast(color, charts.PAPER[mode]) for color in charts.RAMP[mode]]
    assert contrasts == sorted(contrasts)
    assert contrasts[0] > 2
