"""The README's table of goals from benchmarks/results/*.csv: python benchmarks/table.py.

Writes it between the two marker comments of the README. Rows are those with a goal.
"""

import csv
from pathlib import Path

ROOT = Path(__file__).parents[1]
START, END = "<!-- bench: python benchmarks/table.py -->", "<!-- /bench -->"
NEEDED = {
    "section",
    "name",
    "contender",
    "value",
    "unit",
    "goal",
    "met",
    "cpu",
    "cores",
    "versions",
}


def table(folder: Path) -> str:
    """Markdown: where it was measured, then one line for each row with a goal."""
    machines, lines = {}, []
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows = [*csv.DictReader(file)]
        if not rows or not rows[0].keys() >= NEEDED:
            continue
        for row in rows:
            machines[f"{row['cpu']}, {row['cores']} cores; {row['versions']}"] = None
            if row["goal"]:
                figure = f"{float(row['value']):.3g} {row['unit']}".strip()
                goal = row["goal"].replace(">=", "≥").replace("<=", "≤")
                cells = (row["section"], row["name"], row["contender"], figure, goal, row["met"])
                lines.append(f"| {' | '.join(cells)} |")
    head = ["| section | what | contender | figure | goal | met |", "|---|---|---|---|---|---|"]
    return "\n".join(["Measured on " + "; and on ".join(machines) + ".", "", *head, *lines])


def main() -> None:
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text("utf-8").partition(START)
    _, _, after = rest.partition(END)
    made = table(ROOT / "benchmarks" / "results")
    readme.write_text(f"{before}{START}\n{made}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
