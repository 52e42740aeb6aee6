"""How far are predictions of the planner from runs that others measured?

    python bench/planner.py [--json] [--seed N]
    python bench/planner.py --rows FILE --calibrate K [--out FILE]

Without a file: the published runs that come with Trimtab, source by source. What constants are expected to be is learned
from the other sources only; then each source is calibrated on nine parts of ten of its plans and the tenth is
predicted, in turn. Printed beside are the errors of two other tools on the rows that they can read, as measured by their
own code at a fixed setting (bench/README.md says which).

With a file of the same columns: each of its sources is calibrated on K of its rows, chosen by their plans alone, and the
rest is predicted. A source of the same name among the published runs is left out of what is learned.
"""

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trimtab.catalog import published_runs
from trimtab.cost.calibration import (
    Scored,
    held_out,
    measured_runs,
    ranked_groups,
    score_after,
    stack_fits,
    written_fits,
)
from trimtab.terms import InputError

PEERS: Mapping[str, tuple[str, str]] = {
    "Narayanan21-SC21-T1": ("10.3", "46"),
    "BigScience-tr11-A100": ("26.6", "10.7"),
    "vTrain-single-node": ("38.0", "55"),
    "llm-foundry-A100-40GB": ("29", "16"),
    "llm-foundry-A100-80GB": ("36", "21"),
    "dgxc-benchmarking": ("15.2", "111"),
}
"""Mean absolute error of Calculon and of llm-analysis with an efficiency of 0.5, in per cent, on these sources' rows
that each can read (of dgxc-benchmarking five, of vTrain a sample of 200)."""

NATIVE = ("Narayanan21-SC21-T1", "BigScience-tr11-A100", "vTrain-single-node")
"""3D-parallel GPT on A100, by Megatron."""

NATIVE_BAR, ALL_BAR, SOURCE_BAR, UNSCORED_BAR = 8.0, 12.0, 20.0, 15.0
REGRET_BAR, MEMORY_BAR, FALSE_ALARM_BAR = 2.0, 10.0, 5.0
CAUGHT_BAR, COVER_BARS, WIDTH_BAR = 0.9, (80.0, 95.0), 15.0

OUT_COLUMNS = (
    "row_id", "source", "measured_iter_time_s", "predicted_iter_time_s", "low", "high", "predicted_mem_gb", "verdict",
)  # fmt: skip


def main() -> int:
    """Print the scores; 2 for a file that cannot be read as measured runs."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rows", type=Path, metavar="FILE", help="measured runs to score, as CSV")
    made.add_argument("--calibrate", type=int, default=0, metavar="K", help="rows of each source (0)")
    made.add_argument("--out", type=Path, metavar="FILE", help="where each row's prediction goes, as CSV")
    made.add_argument(
        "--write-constants",
        type=Path,
        metavar="FILE",
        help="write what was fitted to published runs, and end",
    )
    made.add_argument("--seed", type=int, default=0, help="of which plans stand in one part (0)")
    made.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    asked = made.parse_args()
    if asked.write_constants:
        text = written_fits(stack_fits(measured_runs(published_runs())))
        asked.write_constants.write_text(text, encoding="utf-8")
        return 0
    try:
        scored = _scored(asked)
    except (InputError, OSError, UnicodeDecodeError) as problem:
        print(problem, file=sys.stderr)
        return 2
    if asked.out:
        with asked.out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(OUT_COLUMNS)
            writer.writerows(_out_row(one) for one in scored)
    document = _document(scored)
    if asked.json:
        print(json.dumps(document, indent=2))
    else:
        _show(scored, document)
    return 0


def _scored(asked: argparse.Namespace) -> list[Scored]:
    if asked.rows is None:
        runs = measured_runs(published_runs())
        found = held_out(runs, stack_fits(runs), seed=asked.seed)
    else:
        with asked.rows.open(encoding="utf-8", newline="") as file:
            runs = measured_runs(csv.DictReader(file))
        found = score_after(runs, stack_fits(measured_runs(published_runs())), rows=asked.calibrate)
    order = {run.row_id: number for number, run in enumerate(runs)}
    return sorted(found, key=lambda one: order[one.run.row_id])


def _out_row(one: Scored) -> tuple[object, ...]:
    return (
        one.run.row_id,
        one.run.source,
        _written(one.run.step_s),
        _written(one.step_s),
        _written(one.low_s),
        _written(one.high_s),
        _written(one.largest_bytes and one.largest_bytes / 1e9),
        _verdict(one),
    )


def _written(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.6g}"


def _verdict(one: Scored) -> str:
    """Of a row: what it was used for, else whether it fits, else why nothing is said."""
    if one.is_calibration:
        return "calibration"
    if one.fits is None:
        return f"unscorable: {one.run.problem}"
    return "ok" if one.fits else "oom"


def _document(scored: Sequence[Scored]) -> dict[str, object]:
    sources = {name: _of(ones) for name, ones in _by_source(scored).items()}
    asked = [one for one in scored if not one.is_calibration]
    timed = [one for one in asked if one.time_error is not None]
    weighed = [one for one in asked if one.memory_error is not None]
    covered = [one for one in timed if one.is_covered is not None]
    ended = [one for one in asked if one.run.is_out_of_memory and one.fits is not None]
    fitting = [
        one for one in asked if one.run.peak_bytes and not one.run.is_out_of_memory and one.fits is not None
    ]
    unscored = [one for one in asked if one.run.problem]
    return {
        "rows": len(scored),
        "calibration_rows": len(scored) - len(asked),
        "scored_rows": len(timed),
        "unscored": _counted(unscored),
        "time_error_pct": _mean_pct([one.time_error for one in timed]),
        "interval_covers_pct": 100 * _share([bool(one.is_covered) for one in covered]),
        "interval_half_width_pct": _median_width(covered),
        "memory_rows": len(weighed),
        "memory_error_pct": _mean_pct([one.memory_error for one in weighed]),
        "out_of_memory": {"rows": len(ended), "predicted": sum(not one.fits for one in ended)},
        "fitting": {"rows": len(fitting), "predicted_out_of_memory": sum(not one.fits for one in fitting)},
        "sources": sources,
    }


def _of(ones: Sequence[Scored]) -> dict[str, object]:
    timed = [one for one in ones if one.time_error is not None]
    groups = ranked_groups(ones)
    taus = [group.tau for group in groups if group.tau is not None]
    return {
        "rows": len(ones),
        "scored_rows": len(timed),
        "time_error_pct": _mean_pct([one.time_error for one in timed]),
        "time_bias_pct": 100 * statistics.fmean([one.time_error or 0 for one in timed]) if timed else None,
        "interval_covers_pct": 100 * _share([bool(one.is_covered) for one in timed]) if timed else None,
        "memory_rows": sum(one.memory_error is not None for one in ones),
        "memory_error_pct": _mean_pct([one.memory_error for one in ones]),
        "ranked_groups": len(groups),
        "regret_mean_pct": 100 * statistics.fmean(group.regret for group in groups) if groups else None,
        "regret_max_pct": 100 * max(group.regret for group in groups) if groups else None,
        "kendall_tau": statistics.fmean(taus) if taus else None,
        "calculon_error_pct": PEERS.get(ones[0].run.source, ("", ""))[0] or None,
        "llm_analysis_error_pct": PEERS.get(ones[0].run.source, ("", ""))[1] or None,
    }


def _show(scored: Sequence[Scored], document: Mapping[str, object]) -> None:
    print(
        "Step time and memory of measured runs, predicted by plans alone; errors are means of absolute values, in %"
    )
    head = (
        "source",
        "rows",
        "scored",
        "error",
        "bias",
        "covered",
        "memory",
        "error",
        "groups",
        "regret",
        "tau",
    )
    print("{:28}{:>6}{:>8}{:>8}{:>8}{:>9}{:>8}{:>8}{:>8}{:>8}{:>6}".format(*head), "  Calculon  llm-analysis")
    sources = document["sources"]
    assert isinstance(sources, dict)
    for name, of in sources.items():
        print(
            f"{name:28}{of['rows']:>6}{of['scored_rows']:>8}{_cell(of['time_error_pct'])}{_cell(of['time_bias_pct'])}"
            f"{_cell(of['interval_covers_pct'], 9, 0)}{of['memory_rows'] or '':>8}{_cell(of['memory_error_pct'])}"
            f"{of['ranked_groups'] or '':>8}{_cell(of['regret_mean_pct'], 8, 2)}{_cell(of['kendall_tau'], 6, 2)}"
            f"{of['calculon_error_pct'] or '':>11}{of['llm_analysis_error_pct'] or '':>14}"
        )
    print()
    for line in _claims(scored, document):
        print(line)
    unscored = document["unscored"]
    assert isinstance(unscored, dict)
    print("\nNot scored:")
    for reason, count in unscored.items():
        print(f"{count:>6}  {reason}")


def _claims(scored: Sequence[Scored], document: Mapping[str, object]) -> list[str]:
    """Each with its bar."""
    sources = document["sources"]
    assert isinstance(sources, dict)
    worst = max(
        (name for name in sources if sources[name]["time_error_pct"] is not None),
        key=lambda name: sources[name]["time_error_pct"],
        default="",
    )
    native = [one.time_error for one in scored if one.run.source in NATIVE and one.time_error is not None]
    groups = [
        group
        for name in sources
        for group in ranked_groups([one for one in scored if one.run.source == name])
    ]
    unscored = sum(1 for one in scored if one.run.problem)
    ended, fitting = document["out_of_memory"], document["fitting"]
    assert isinstance(ended, dict)
    assert isinstance(fitting, dict)
    covers, width = document["interval_covers_pct"], document["interval_half_width_pct"]
    assert isinstance(covers, float)
    assert isinstance(width, float)
    lines = []

    def claim(
        name: str, value: float | None, is_reached: Callable[[float], bool], bar: str, unit: str = "%"
    ) -> None:
        if value is not None:
            verdict = "reached" if is_reached(value) else "MISSED"
            lines.append(f"{name:58}{value:>9.2f} {unit:3} {bar}: {verdict}")

    all_error, memory = document["time_error_pct"], document["memory_error_pct"]
    assert all_error is None or isinstance(all_error, float)
    assert memory is None or isinstance(memory, float)
    claim(
        "step time, 3D-parallel GPT on A100",
        _mean_pct(native),
        lambda v: v <= NATIVE_BAR,
        f"<= {NATIVE_BAR:g}",
    )
    claim("step time, all scored rows", all_error, lambda v: v <= ALL_BAR, f"<= {ALL_BAR:g}")
    if worst:
        error = sources[worst]["time_error_pct"]
        claim(f"step time, worst source ({worst})", error, lambda v: v <= SOURCE_BAR, f"<= {SOURCE_BAR:g}")
    claim(
        "rows not scored", 100 * unscored / len(scored), lambda v: v <= UNSCORED_BAR, f"<= {UNSCORED_BAR:g}"
    )
    if groups:
        regret = 100 * statistics.fmean(group.regret for group in groups)
        claim(
            f"regret, mean of {len(groups)} groups", regret, lambda v: v <= REGRET_BAR, f"<= {REGRET_BAR:g}"
        )
    low, high = COVER_BARS
    claim("interval of 90 % covers", covers, lambda v: low <= v <= high, f"{low:g} to {high:g}")
    claim("interval, median half-width", width, lambda v: v <= WIDTH_BAR, f"<= {WIDTH_BAR:g}")
    claim("memory, rows with a reported peak", memory, lambda v: v <= MEMORY_BAR, f"<= {MEMORY_BAR:g}")
    if ended["rows"]:
        share = ended["predicted"] / ended["rows"]
        name = f"out of memory, {ended['predicted']} of {ended['rows']} predicted"
        claim(name, 100 * share, lambda v: v >= 100 * CAUGHT_BAR, f">= {100 * CAUGHT_BAR:g}")
    if fitting["rows"]:
        wrong = fitting["predicted_out_of_memory"]
        name = f"fitting runs called out of memory, {wrong} of {fitting['rows']}"
        claim(name, 100 * wrong / fitting["rows"], lambda v: v <= FALSE_ALARM_BAR, f"<= {FALSE_ALARM_BAR:g}")
    return lines


def _by_source(scored: Sequence[Scored]) -> Mapping[str, list[Scored]]:
    found: dict[str, list[Scored]] = {}
    for one in scored:
        found.setdefault(one.run.source, []).append(one)
    return found


def _counted(unscored: Sequence[Scored]) -> dict[str, int]:
    """Reasons with the source, most frequent first."""
    found: dict[str, int] = {}
    for one in unscored:
        reason = f"{one.run.source}: {one.run.problem}"
        found[reason] = found.get(reason, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _mean_pct(errors: Sequence[float | None]) -> float | None:
    known = [abs(error) for error in errors if error is not None]
    return 100 * statistics.fmean(known) if known else None


def _share(facts: Sequence[bool]) -> float:
    return sum(facts) / len(facts) if facts else 0.0


def _median_width(covered: Sequence[Scored]) -> float:
    """Half of the interval, as the factor from its middle to its end."""
    widths = [(one.high_s / one.low_s) ** 0.5 - 1 for one in covered if one.high_s and one.low_s]
    return 100 * statistics.median(widths) if widths else 0.0


def _cell(value: object, width: int = 8, digits: int = 1) -> str:
    return " " * width if value is None else f"{value:>{width}.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
