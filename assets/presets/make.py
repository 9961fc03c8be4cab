"""Draw the presets' cards: python assets/presets/make.py writes NAME.svg beside this file."""

from pathlib import Path

import altair as alt
import vl_convert

from krrviz import PRESETS, fan_frame
from krrviz.charts import CURVES, RAMP


def main() -> None:
    for name, preset in PRESETS.items():
        rows = fan_frame(preset.settings.but(methods=("transformer",)))
        every = max(1, preset.settings.steps // (CURVES // 2))
        drawn = rows[rows["step"] % every == 0].round(6)
        # Colours that stand on light and on dark paper: the ramp's middle.
        chart = (
            alt.Chart(drawn)
            .mark_line(strokeWidth=1.6, clip=True)
            .encode(
                alt.X("n:Q", axis=None, scale=alt.Scale(nice=False, zero=False)),
                alt.Y("error:Q", axis=None, scale=alt.Scale(type="log", domain=[1e-3, 2])),
                alt.Color("step:Q", legend=None, scale=alt.Scale(range=RAMP["light"][:4])),
                detail="step:N",
            )
            .properties(width=220, height=110, background="transparent")
            .configure_view(stroke=None)
        )
        svg = vl_convert.vegalite_to_svg(chart.to_dict())
        Path(__file__).with_name(f"{name}.svg").write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
