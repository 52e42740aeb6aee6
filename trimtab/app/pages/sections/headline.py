"""The top of a page: what the job is, whether it fits, what it costs, what to be warned of."""

from collections.abc import Callable, Iterator, Mapping

from trimtab.app.explanation_text.quantities import elements
from trimtab.app.pages.facts import Facts
from trimtab.app.pages.formula_lines import FormulaLines
from trimtab.app.pages.markup import Markup, element
from trimtab.app.pages.quantities import UNKNOWN, count, dollars, percent, plural
from trimtab.terms import format_bytes, format_seconds


def headline(document: Facts, lines: FormulaLines) -> Markup:
    """The job in one line, the verdict, the figures that decide, the warnings."""
    return element(
        "header",
        element("p", "Explanation of run ", element("code", document["run"]), class_="kicker"),
        element("h1", f"{document['model']['network']} on {document['where']['cluster']}"),
        element("p", ", ".join(_sizes(document)), class_="quiet"),
        _verdict(document),
        element("dl", *_figures(document), class_="figures"),
        _warnings(document, lines),
    )


def _sizes(document: Facts) -> Iterator[str]:
    """How large the model and the machine are."""
    model, where = document["model"], document["where"]
    if model["parameters"] is not None:
        yield f"{elements(model['parameters'])} parameters"
        if model["active_parameters"] not in (None, model["parameters"]):
            yield f"{elements(model['active_parameters'])} active"
    kinds = ", ".join(dict.fromkeys(run["accelerator"] for run in where["nodes"]))
    yield plural(where["num_devices"], "device") + (f" ({kinds})" if kinds else "")
    yield plural(where["num_nodes"], "node")


def _verdict(document: Facts) -> Markup:
    fits, groups = document["fits"], document["groups"]
    if document["storage"] is not None:
        text = "The operators of this class are not known: neither its time nor its memory of activations is."
        return element("p", text, class_="verdict")
    if not groups:
        return element(
            "p", "Only torch knows the shapes of this class: no figures per rank.", class_="verdict"
        )
    worst = max(groups, key=lambda group: group["memory"]["peak_bytes"])
    memory, device_bytes = worst["memory"], document["where"]["device_bytes"]
    peak = f"{format_bytes(memory['peak_bytes'])} at the peak ({memory['peak']}, group {worst['name']})"
    if fits is None:
        return element("p", f"Needs {peak}; the memory of the devices is not known.", class_="verdict")
    room = f"{format_bytes(device_bytes)} of a device"
    if fits:
        used = percent(memory["peak_bytes"] / device_bytes)
        return element(
            "p", element("strong", "Fits"), f": {peak}, {used} of the {room}.", class_="verdict good"
        )
    over = format_bytes(memory["peak_bytes"] - device_bytes)
    said = f": {peak}, {over} more than the {room}."
    return element("p", element("strong", "Does not fit"), said, class_="verdict bad")


def _figures(document: Facts) -> Iterator[Markup]:
    cost, pipeline, work = document["cost"], document["pipeline"], document["work"]
    if cost["step_s"] is None:
        yield _figure("Step", UNKNOWN, cost["unknown"])
    else:
        yield _estimate("Step", cost["step_s"], format_seconds)
        yield _estimate("Tokens per second", cost["tokens_per_s"], count)
    for mfu in cost["mfu"][:1]:
        yield _estimate(f"MFU, {mfu['convention']} attention", mfu["value"], percent)
    if cost["usd_per_step"]:
        yield _estimate("Dollars per step", cost["usd_per_step"], dollars)
    if cost["usd"]:
        yield _estimate(f"Dollars for {count(cost['steps'])} steps", cost["usd"], dollars)
    if pipeline:
        microbatches = plural(pipeline["microbatches"], "microbatch", "microbatches")
        yield _figure("Bubble", percent(pipeline["bubble_share"]), f"{pipeline['schedule']}, {microbatches}")
    if work:
        samples = f"{count(work['batch'])} samples of {count(work['sequence'])}"
        yield _figure("Tokens per step", count(work["tokens"]), samples)


def _estimate(name: str, interval: Mapping[str, float], shown: Callable[[float], str]) -> Markup:
    return _figure(
        name, shown(interval["expected"]), f"{shown(interval['low'])} to {shown(interval['high'])}"
    )


def _figure(name: str, value: str, note: str) -> Markup:
    return element("div", element("dt", name), element("dd", value), element("dd", note, class_="note"))


def _warnings(document: Facts, lines: FormulaLines) -> Markup | None:
    warnings = document["warnings"]
    if not warnings:
        return None
    items = (
        element(
            "li",
            warning["message"],
            " ",
            lines.chips([warning["at"]]),
            data_by=lines.attribute(warning["at"]),
        )
        for warning in warnings
    )
    title = element("h2", plural(len(warnings), "warning"))
    return element("section", title, element("ul", *items), class_="warnings")
