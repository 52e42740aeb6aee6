"""How long one all-reduce of gradients takes by each route, on two clusters, by the size of its buckets.

    python examples/routes/routes.py

Every figure is one that `trimtab explain` prints for the job beside this file with another REDUCE line; docs/choosing-all-reduce.md
says how to read the table.
"""

import contextlib
import io
import json
from pathlib import Path

from trimtab.app.cli import run_cli

JOB = Path(__file__).parent / "job.yaml"
ROUTES = ("native", "ring", "reduce_scatter", "tree", "recursive_doubling", "hierarchical(node)")
CLUSTERS = (("64xA100", 64), ("512xA100-100Gb", 64))
BUCKETS = {"10KB": 10e3, "4MB": 4e6, "25MB": 25e6, "none": float("inf")}


def bucket_s(cluster: str, devices: int, route: str, bucket: str) -> tuple[float, float]:
    """Seconds of the fullest bucket, and bytes that a rank sends between nodes for it."""
    size = "" if bucket == "none" else f" BUCKET {bucket}"
    formulas = json.dumps(f"MESH dp {devices}\nREDUCE grads OVER dp USING {route}{size}")
    settings = {
        "parallelism": formulas,
        "orchestration.cluster": cluster,
        "orchestration.devices": str(devices),
        "train.batch": str(devices),
    }
    printed = io.StringIO()
    overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        run_cli(["explain", str(JOB), "--json", *overrides])
    uses = json.loads(printed.getvalue())["groups"][0]["collectives"]
    # A tensor that is larger than a bucket has one of its own.
    fullest = max(
        (use for use in uses if use["payload_bytes"] <= BUCKETS[bucket]), key=lambda use: use["payload_bytes"]
    )
    return fullest["seconds"], fullest["rank_bytes"]["site"]


def main() -> None:
    """Print the tables."""
    for cluster, devices in CLUSTERS:
        print(f"{cluster}, {devices} ranks, fp32: milliseconds of a bucket")
        print(
            f"  {'route':20}" + "".join(f"{bucket:>10}" for bucket in BUCKETS) + f"{'GB between nodes':>20}"
        )
        for route in ROUTES:
            found = [bucket_s(cluster, devices, route, bucket) for bucket in BUCKETS]
            times = "".join(f"{1e3 * seconds:10.2f}" for seconds, _ in found)
            print(f"  {route:20}{times}{found[-1][1] / 1e9:20.3f}")


if __name__ == "__main__":
    main()
