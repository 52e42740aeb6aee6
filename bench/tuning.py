"""How near does the search of `trimtab tune` come to the best of a table of real runs, beside random search?

    python bench/tuning.py --table steplaw_dense_lr_bs.csv

The table has one real training run a row, with columns params_no_embed, tokens, lr, batch_seqs and smooth_loss; a cell is
all runs of one network and one number of tokens. In each cell the search may look at 30 runs, for each of 20 seeds; it
knows only those it has looked at. Simple regret is the best loss it has seen less the best of the cell. Random search
looks at as many different runs of the cell.

Two figures a cell: the mean regret over (median over seeds of what random search finds, less the best), which is strict,
for random search finds good ones in small cells too; and over (median run of the cell less the best).
The tables are not part of the project: steplaw's, of arXiv 2503.04715, names no licence.
"""

import argparse
import csv
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from trimtab.cost.search.tuning import Numbers, Seen, Space, Told, propose

BAR = 0.05


def main() -> int:
    """Print a line a cell and the sum over cells; 1 if the bar is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=20)
    asked = parser.parse_args()
    totals = [0.0, 0.0, 0.0]
    print(
        "cell: parameters, tokens | runs | best | regret, mean (max) | of random's regret | of the median run's"
    )
    for name, table in cells(asked.table).items():
        best = min(table.values())
        found = [searched(table, trials=asked.trials, seed=seed) - best for seed in range(asked.seeds)]
        drawn = median(randomly(table, trials=asked.trials, seed=seed) for seed in range(200)) - best
        middle = median(table.values()) - best
        mean = fmean(found)
        for number, value in enumerate((mean, drawn, middle)):
            totals[number] += value
        strict = f"{mean / drawn:.3f}" if drawn else "random finds the best"
        print(
            f"{name} | {len(table)} | {best:.4f} | {mean:.6f} ({max(found):.6f}) | {strict} | {mean / middle:.4f}",
            flush=True,
        )
    strict, lenient = totals[0] / totals[1], totals[0] / totals[2]
    print(f"over all cells: {strict:.3f} of random search's regret, {lenient:.4f} of the median run's")
    verdict = "reached" if strict <= BAR and lenient <= BAR else "MISSED"
    print(f"<= {BAR}: {verdict}")
    return 0 if verdict == "reached" else 1


def cells(path: Path) -> dict[str, dict[tuple[float, int], float]]:
    """By cell, the loss of each pair of learning rate and batch; of runs made twice the lower one."""
    found: dict[str, dict[tuple[float, int], float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name = f"{float(row['params_no_embed']) / 1e6:.0f}M, {float(row['tokens']) / 1e9:.1f}B"
            pair = float(row["lr"]), int(row["batch_seqs"])
            table = found.setdefault(name, {})
            table[pair] = min(float(row["smooth_loss"]), table.get(pair, float("inf")))
    return found


def searched(table: Mapping[tuple[float, int], float], *, trials: int, seed: int) -> float:
    """The best loss that the search has seen."""
    space = Space(
        knobs={
            "lr": Numbers(values=tuple(sorted({lr for lr, _ in table}))),
            "batch": Numbers(values=tuple(sorted({batch for _, batch in table}))),
        }
    )
    told: list[Told] = []
    for _ in range(min(trials, len(table))):
        params = propose(
            space,
            told,
            num_objectives=1,
            seed=seed,
            allowed=lambda params: (params["lr"], params["batch"]) in table,
        )
        assert params is not None, "the table has more runs than trials"
        loss = table[float(params["lr"]), int(params["batch"])]
        told.append(Told(params=params, seen=Seen.DONE, values=(loss,)))
    return min(trial.values[0] for trial in told)


def randomly(table: Mapping[tuple[float, int], float], *, trials: int, seed: int) -> float:
    """The best loss of as many runs drawn without regard."""
    losses: Sequence[float] = list(table.values())
    return min(random.Random(seed).sample(losses, min(trials, len(losses))))


if __name__ == "__main__":
    sys.exit(main())
