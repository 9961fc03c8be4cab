"""What probing the main checkpoint finds, and how long it takes: python benchmarks/probe.py.

The README's table is the one printed here.
"""

import sys
import time
from pathlib import Path

import torch

from krrviz import findings
from krrviz.bench.record import machine
from krrviz.frames import TITLES
from krrviz.trained.gpt import load
from krrviz.trained.inside import heads
from krrviz.trained.match import match
from krrviz.trained.probe import READOUTS, SEED, fixed_task, probe
from krrviz.trained.prompts import draw

PROMPTS = 512
GOAL = 60.0  # seconds on two cores


def main(name: str) -> None:
    model, card = load(Path("assets/checkpoints") / name)
    task = fixed_task(card)
    started, used = time.perf_counter(), time.process_time()
    found = probe(model, task, PROMPTS)
    matched = match(found)
    took, used = time.perf_counter() - started, time.process_time() - used
    print(*machine().values(), sep="\n", end="\n\n")
    print(f"{name}, weights {card['sha256']}, {card['steps']} steps of training")
    print(", ".join(f"{key} {value:.4f}" for key, value in card["figures"].items()))
    print(
        f"probed and matched on {PROMPTS} prompts in {took:.1f} s, {used:.1f} s of processor time "
        f"(goal {GOAL:.0f} s)"
    )
    ranking: findings.Frame = findings.ranking_rows(matched.matches)
    ranking = ranking[ranking.ridge_scale == "absolute"]
    for readout, told in READOUTS.items():
        mine = ranking[ranking.readout == readout]
        print(f"\nRead by {told}:\n\n{findings.winners(mine)}\n")
        for metric in ("similarity", "operator"):
            for row in findings.ranked(mine[mine.path == "free"], metric, "certified").itertuples():
                print(
                    f"{metric:10} certified  {TITLES[row.method]:26} {row.score:.4f}  "
                    f"[{row.low:.4f}, {row.high:.4f}]  steps {row.steps}"
                )
    print(f"\nadditivity defect by layer: {_row(found.defect)}")
    for method in ("conjugate_gradient", "preconditioned_conjugate_gradient"):
        print(f"  of {TITLES[method]}, steps 0 to 8: {_row(matched.defects[method][:9])}")
    for network, values in (("trained", found.explained), ("untrained", found.untrained)):
        for target, r2 in values.items():
            print(f"R² of {target}, {network}, by layer: {_row(r2)}")
    alike = heads(model, draw(task, 16, torch.Generator().manual_seed(SEED + 2**27))).alike
    print("correlation of the heads with D⁻¹K, by layer:")
    for layer, row in enumerate(alike, 1):
        print(f"  {layer}: {_row(row)}")


def _row(values: torch.Tensor) -> str:
    return " ".join(f"{float(value):.3f}" for value in values)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "main-0")
