"""Training runs that others measured and published, as they stated them."""

from collections.abc import Mapping
from functools import cache

from trimtab.catalog.tables import csv_rows


def published_runs() -> tuple[Mapping[str, str], ...]:
    """Some 2,400 rows of 23 sources, each with its source; an empty field is one that the source does not state.

    ``iter_time_s``, ``tflops_per_accel``, ``mfu_pct`` and ``mem_gb_per_accel`` are reported values,
    ``derived_iter_time_s`` is arithmetic from reported throughput by the formula in ``derived_how``.
    """
    return csv_rows("published_runs.csv.gz")


@cache
def published_shapes() -> Mapping[str, Mapping[str, str]]:
    """Shapes of networks by the names that published runs use without stating them, each with its source."""
    return {row["model"]: row for row in csv_rows("published_shapes.csv")}
