"""What ``plan`` found, as people read it."""

from collections.abc import Iterator, Sequence
from datetime import date

from trimtab.app.mixture_text import mixture_lines
from trimtab.app.plan_answers import Answer
from trimtab.app.plan_search import Strategy
from trimtab.app.plan_words import degrees
from trimtab.catalog import FlopConvention
from trimtab.cost.search import Growing, Largest, Question, SumTime, Verdict
from trimtab.terms import format_bytes, format_seconds

_PARTS = {
    "compute_s": "computing",
    "recompute_s": "computing again",
    "collectives_s": "collectives of activations",
    "hops_s": "hops of the pipeline",
    "bubble_s": "bubble",
    "gradients_s": "exchange of gradients",
    "stored_s": "gathers of stored parameters",
    "optimizer_s": "optimizer",
    "fixed_s": "host",
    "straggling_s": "waiting for the slowest",
}

_BROKEN = {
    Verdict.MEMORY: "do not fit",
    Verdict.DEADLINE: "take too long",
    Verdict.BUDGET: "cost too much",
}


def plan_lines(answer: Answer, *, today: date) -> Iterator[str]:
    """Line by line; prices that are old by then are said to be."""
    question, findings = answer.question, answer.findings
    counts = ", ".join(map(str, question.devices))
    yield f"{question.network.name} on {counts} of {answer.place}"
    yield f"  searched    {findings.evaluated:,} layouts, time and memory of each; {_verdicts(answer)}"
    yield f"  learned     from {answer.stack}"
    if answer.price:
        yield f"  price       ${answer.price.usd_per_device_hour:.2f} a device and hour: {answer.price.source}"
        if warning := answer.price.warning(today):
            yield f"  warning     {warning}"
    yield f"  head-room   {answer.limits.headroom:.0%} of {format_bytes(question.fabric.memory_bytes)} stay free"
    if not answer.strategies:
        yield from _nothing(answer)
    for number, strategy in enumerate(answer.strategies, start=1):
        yield ""
        yield from _strategy_lines(number, strategy)
    if answer.alone:
        yield from mixture_lines(answer)
    if len(answer.curve) > 1:
        yield from _curve(answer)
    if answer.largest is not None:
        yield from _largest(answer.largest)
    if answer.other is not None:
        yield from _why_not(answer, answer.other)


def _verdicts(answer: Answer) -> str:
    counts = answer.findings.verdicts
    broken = [f"{counts[verdict]:,} {text}" for verdict, text in _BROKEN.items() if counts[verdict]]
    return ", ".join([f"{counts[Verdict.FEASIBLE]:,} keep every limit", *broken])


def _strategy_lines(number: int, strategy: Strategy) -> Iterator[str]:
    candidate, comparison = strategy.candidate, strategy.comparison
    equal = number > 1 and comparison.is_equal
    said = "nobody can say which is faster" if equal else f"{comparison.ratio:.2f} times the first"
    yield (
        f"{number}. step {format_seconds(strategy.step_s)} "
        f"({format_seconds(strategy.low_s)} to {format_seconds(strategy.high_s)})"
        + (f", ${candidate.usd_per_step:,.2f}" if candidate.usd_per_step is not None else "")
        + f", {format_bytes(candidate.memory_bytes)} a device, MFU {strategy.mfu[FlopConvention.FULL]:.0%} (full)"
        + (f"; {said}" if number > 1 else "")
    )
    total = sum(candidate.parts.values())
    shares = sorted(candidate.parts.items(), key=lambda part: -part[1])
    yield "   " + ", ".join(f"{_PARTS[name]} {seconds / total:.0%}" for name, seconds in shares[:4])
    if strategy.candidate.layout.reduce:
        yield f"   sums of gradients, waited for: {_sums(strategy.sums)}"
    yield from (f"     {line}" for line in strategy.formulas.splitlines())
    yield "   " + " ".join(f"--set {key}={value}" for key, value in strategy.settings.items())


def _sums(sums: Sequence[SumTime]) -> str:
    """The shortest of each route, then what holds by default."""
    shortest: dict[str, SumTime] = {}
    for found in sums:
        shortest.setdefault(found.route, found)
    default = [found for found in sums if (found.route, found.bucket) == ("native", "")]
    return ", ".join(
        f"{found.route}{f' in {found.bucket}' if found.bucket else ''} {format_seconds(found.exposed_s)}"
        for found in dict.fromkeys([*shortest.values(), *default])
    )


def _curve(answer: Answer) -> Iterator[str]:
    yield ""
    yield f"{'devices':>9}{'step':>14}{'$ a step':>12}{'memory':>12}  layout"
    for strategy in answer.curve:
        candidate = strategy.candidate
        usd = "" if candidate.usd_per_step is None else f"{candidate.usd_per_step:,.2f}"
        yield (
            f"{candidate.layout.devices:>9}{format_seconds(strategy.step_s):>14}{usd:>12}"
            f"{format_bytes(candidate.memory_bytes):>12}  {degrees(candidate)}"
        )


def _largest(found: Largest) -> Iterator[str]:
    unit = {
        Growing.SEQUENCE: "tokens a sample",
        Growing.MICROBATCH: "samples a microbatch",
        Growing.LAYERS: "layers",
    }
    yield ""
    if found.candidate is None:
        yield f"no {found.what.value} fits; {found.next_value:,} lack {format_bytes(found.next_lacks_bytes)} a device"
        return
    size = f", {found.question.network.num_parameters():,} parameters" if found.what is Growing.LAYERS else ""
    yield f"largest {found.what.value} that fits: {found.value:,} {unit[found.what]}{size}"
    yield f"  {format_bytes(found.candidate.memory_bytes)} a device, {degrees(found.candidate)}"
    if found.next_lacks_bytes > 0:
        yield f"  {found.next_value:,} would lack {format_bytes(found.next_lacks_bytes)}"


def _nothing(answer: Answer) -> Iterator[str]:
    yield ""
    if not answer.findings.evaluated:
        yield f"no layout divides: {undivided(answer.question)}"
        return
    yield "nothing keeps every limit"
    if answer.nearest:
        yield "  nearest, by the memory that each device lacks:"
        for candidate in answer.nearest[:10]:
            yield f"  {format_bytes(candidate.shortfall_bytes):>10}  {degrees(candidate)}"
        rest = answer.findings.verdicts[Verdict.MEMORY] - 10
        if rest > 0:
            yield f"  {'':>10}  and {rest:,} more, which lack as much or more"
        yield "  more devices, a shorter sequence or less head-room would tell; --json lists more"


def undivided(question: Question) -> str:
    """What degrees have to divide, where none do."""
    network = question.network
    shares = f", {question.shares} shares" if question.shares else ""
    return (
        f"{' or '.join(map(str, question.devices))} devices as a product of degrees that divide {network.heads} heads, "
        f"{network.kv_heads} of keys and values and {network.mlp} of the MLP (tp), up to {network.layers} layers (pp), "
        f"{question.sequence} tokens (cp) and {question.batch} samples{shares} (dp)"
    )


def _why_not(answer: Answer, other: Strategy) -> Iterator[str]:
    candidate, comparison = other.candidate, other.comparison
    yield ""
    yield f"why not {degrees(candidate)}"
    if candidate.verdict is Verdict.MEMORY:
        classes = ", ".join(
            f"{name.removesuffix('_bytes')} {format_bytes(size)}"
            for name, size in candidate.memory_parts.items()
        )
        yield f"  it does not fit: {format_bytes(candidate.shortfall_bytes)} are lacking; {classes}"
    elif candidate.verdict is not Verdict.FEASIBLE:
        yield f"  it would {_BROKEN[candidate.verdict]}"
    if candidate.refusal:
        yield "  it cannot be compiled: " + candidate.refusal.splitlines()[0]
    if answer.strategies:
        if comparison.is_equal:
            yield "  nobody can say whether it is slower than the first"
        yield (
            f"  a step takes {comparison.ratio:.2f} times the first's ({comparison.low:.2f} to {comparison.high:.2f}):"
            f" {format_seconds(candidate.step_s)}"
        )
        for name, seconds in comparison.longer[:3]:
            yield f"    {_PARTS[name]}: {format_seconds(seconds)} longer"
