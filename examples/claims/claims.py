"""What planning alone does for published claims: communication, hours, bubbles, tensor parallelism over nodes, utilisation.

    python examples/claims/claims.py

Every figure comes from `trimtab plan` on the job files beside this one; docs/claims.md says what follows.
"""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from trimtab.app.cli import run_cli

HERE = Path(__file__).parent
PASSES = ("compute_s", "recompute_s", "collectives_s", "hops_s")
SENT = ("collectives_s", "hops_s", "gradients_s", "stored_s")
OFFICIAL_HOURS = 1_720_320
"""Of A100-80GB for Llama 2 70B (Touvron et al. 2023, table 2)."""

EVERY_LAYOUT = ("--set", "fault_tolerance.shares=auto")


def plan(job: str, *arguments: str) -> dict[str, Any]:
    """The document of a search."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run_cli(["plan", str(HERE / job), *EVERY_LAYOUT, "--top", "1", "--json", *arguments])
    document: dict[str, Any] = json.loads(printed.getvalue())
    return document


def share(strategy: dict[str, Any], *names: str) -> float:
    """Of the step, in per cent."""
    parts = strategy["parts_s"]
    return 100 * sum(parts[name] for name in names) / sum(parts.values())


def full(strategy: dict[str, Any]) -> float:
    """MFU with every score of attention counted, in per cent."""
    return 100 * float(strategy["mfu"]["full"])


def _said(strategy: dict[str, Any]) -> str:
    return f"{full(strategy):3.0f} % MFU, {share(strategy, *SENT):2.0f} % of the step sending"


def main() -> None:
    """Print the table."""
    by_hand = plan("gpt3.yaml", "--why-not", "tp=8,pp=8,store=states,microbatch=1,recompute=all")
    best, hand = by_hand["strategies"][0], by_hand["why_not"]
    print("communication: GPT-3 175B on 512 A100, 100 Gb/s a node")
    for name, strategy in (("tp 8, pp 8, ZeRO-1", hand), ("planned", best)):
        print(f"  {name:22} {share(strategy, *SENT):3.0f} % of the step")
    print(
        f"  end to end             {100 * (best['closed_form_step_s'] / hand['closed_form_step_s'] - 1):+.0f} %"
    )

    few = plan("gpt3.yaml", "--set", "train.batch=16", "--why-not", "tp=8,pp=16,store=states,recompute=all")
    print("bubble: the same in 16 stages, 4 microbatches")
    passes = {name: few["why_not"]["parts_s"][name] for name in (*PASSES, "bubble_s")}
    print(f"  1f1b                   {100 * passes['bubble_s'] / sum(passes.values()):3.0f} % of the passes")

    print("tensor parallelism over nodes: the same on 512 A100, 200 Gb/s a device")
    for ranks in (8, 16, 32):
        wide = plan(
            "gpt3.yaml",
            *("--cluster", "2048xA100", "--devices", "512"),
            *("--why-not", f"tp={ranks},pp=4,store=states,recompute=all"),
        )
        print(f"  tp {ranks:2}                  {_said(wide['why_not'])}")
    print(f"  planned                {_said(wide['strategies'][0])}")

    llama = plan("llama2-70b.yaml", "--why-not", "tp=8,pp=8,store=states,microbatch=1,recompute=all")
    chosen, tried = llama["strategies"][0], llama["why_not"]
    steps = 476_837  # 2 trillion tokens in batches of 4 million
    hours = {key: seconds * steps * 2048 / 3600 for key, seconds in chosen["step_s"].items()}
    print("hours: Llama 2 70B, 2 trillion tokens on 2,048 A100")
    print(f"  planned                {hours['expected'] / 1e6:.2f} million device hours, no restart in them")
    print(f"  of the official 1.72   {100 * hours['expected'] / OFFICIAL_HOURS:.0f} %")
    print(
        f"  nine of ten between    {100 * hours['low'] / OFFICIAL_HOURS:.0f} and "
        f"{100 * hours['high'] / OFFICIAL_HOURS:.0f} %"
    )
    h100 = plan("llama2-70b.yaml", "--cluster", "512xH100")
    fast = h100["strategies"][0]
    h100_hours = fast["step_s"]["expected"] * steps * 512 / 3600
    print(f"  on 512 H100            {100 * h100_hours / OFFICIAL_HOURS:.0f} % of the hours")
    even = 0.62 * OFFICIAL_HOURS / h100_hours
    print(f"  62 % of the dollars    while an H100 hour costs less than {even:.2f} A100 hours")
    prices = llama["usd_per_device_hour"], h100["usd_per_device_hour"]
    print(
        f"  at ${prices[0]:.2f} and ${prices[1]:.2f}      {100 * h100_hours * prices[1] / (OFFICIAL_HOURS * prices[0]):.0f} % of the dollars"
    )
    print(f"    {llama['price_source']}")
    print(f"    {h100['price_source']}")

    print("utilisation: Llama 2 70B on 2,048 A100")
    for name, strategy in (("tp 8, pp 8, all again", tried), ("planned", chosen)):
        print(f"  {name:22} {full(strategy):3.0f} % MFU")


if __name__ == "__main__":
    main()
