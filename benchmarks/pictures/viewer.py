"""Write a picture of a run's report, as Chromium shows it: its head with the curves, and an episode's turns.

python benchmarks/pictures/viewer.py runs/guess docs/images/report.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import sync_playwright

from agentgym.envs.gui.chromium import find_chromium


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1150)
    given = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": given.width, "height": given.height}, color_scheme="light")
        page.goto((given.run / "report.html").resolve().as_uri())
        page.wait_for_timeout(1_000)  # charts and the first episode are drawn as they are unpacked
        page.screenshot(path=given.out)
        browser.close()
    print(f"{given.out}: {given.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
