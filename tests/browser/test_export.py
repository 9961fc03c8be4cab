"""What a person saves in the browser is what the library exports of the same link."""

import io
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Locator, Page

from krrviz import Settings, View, export
from krrviz.maps import Map

SMALL = Settings(n=12, steps=4, prompts=2, queries=4, segments=8)


def saved(page: Page, figure: Locator) -> tuple[str, str]:
    """The name and the text of a figure's CSV file."""
    figure.locator("button.download").press("Enter")
    with page.expect_download() as download:
        figure.get_by_role("button", name="CSV").press("Enter")
    return download.value.suggested_filename, download.value.path().read_text("utf-8")


@pytest.mark.parametrize(("at", "count"), [("fan", 7), ("forward", 12)])
def test_saved_files_hold_what_is_exported(
    at: str, count: int, page: Page, app: str, settled: Callable[[Page], None]
) -> None:
    view = View(block=2)
    page.goto(app + export.link(at, SMALL, view))
    settled(page)
    shown = export.shown(at, SMALL, view)
    drawn = page.locator("[data-testid=figures] figure, [data-testid=heatmaps] .grid figure")
    files = dict[str, str]()
    for k, figure in enumerate(drawn.all()):
        if k == 8:  # of more than ten downloads in a row a browser asks the person first
            page.goto("about:blank")
            page.goto(app + export.link(at, SMALL, view))
            settled(page)
        files |= [saved(page, figure)]
    assert {*files} == {f"{name}.csv" for name in shown}
    assert len(files) == count
    for name, picture in shown.items():
        rows, read = export.rows(picture), pd.read_csv(io.StringIO(files[f"{name}.csv"]))
        if isinstance(picture, Map):  # saved as the matrix it is
            assert np.array_equal(read.iloc[:, 1:].to_numpy(), picture.values)
            assert [*read.iloc[:, 0]] == [*rows.row.unique()]
            # pandas numbers columns of one name
            assert [c.partition(".")[0] for c in read.columns[1:]] == [
                c.partition(".")[0] for c in picture.col_names or picture.cols
            ]
        else:
            wanted = pd.read_csv(io.StringIO(rows.to_csv(index=False)))
            pd.testing.assert_frame_equal(read, wanted, check_exact=True, check_dtype=False)
