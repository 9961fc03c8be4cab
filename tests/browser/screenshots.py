"""Draw the pictures that the README shows: python tests/browser/screenshots.py."""

import shutil

from conftest import CHROMIUM, FLAGS, ROOT, SETTLED, server
from playwright.sync_api import sync_playwright

PICTURES = {
    "fan-light": ("light", "/"),
    "fan-dark": ("dark", "/?data=gp"),
    "attention-light": ("light", "/attention?pin=40"),
    "forward-light": ("light", "/forward?block=16"),
    "guarantee-light": ("light", "/guarantee?data=gp&topic=depth"),
    "tour-light": ("light", "/tour?station=2&answers=aa------"),
    "trained-light": ("light", "/trained?study=match&readout=krr"),
    "own-data-light": ("light", "/own_data"),
}


def main() -> None:
    chromium = next(filter(None, map(shutil.which, CHROMIUM)))
    with server() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for name, (scheme, address) in PICTURES.items():
            page = browser.new_page(
                viewport={"width": 1440, "height": 900},
                color_scheme=scheme,  # pyright: ignore[reportArgumentType]
            )
            page.goto(url + address)
            if "own_data" in address:
                file = ROOT / "assets" / "datasets" / "diabetes.csv"
                page.locator("input[type=file]").set_input_files(file)
            page.wait_for_function(SETTLED, polling=50, timeout=120_000)
            page.screenshot(path=ROOT / "assets" / "screenshots" / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
