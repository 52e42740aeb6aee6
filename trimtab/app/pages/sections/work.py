"""How a step is cut, what happens when a rank is lost, and what the figures rest on."""

from collections.abc import Iterator

from trimtab.app.explanation_text.quantities import flops
from trimtab.app.pages.facts import Facts
from trimtab.app.pages.formula_lines import FormulaLines
from trimtab.app.pages.markup import Child, Markup, element, joined
from trimtab.app.pages.quantities import count, dollars, percent, plural


def work(document: Facts, lines: FormulaLines) -> Markup:
    """The batch, the FLOPs, the promise, the checkpoints: each with what decided it."""
    facts = (
        element(
            "div",
            element("dt", name),
            element("dd", value, " ", lines.chips(places)),
            data_by=lines.attribute(*places),
        )
        for name, value, places in _facts(document)
    )
    return element(
        "section", element("h2", "Step and failure"), element("dl", *facts, class_="facts"), id="step"
    )


def _facts(document: Facts) -> Iterator[tuple[str, Child, tuple[str, ...]]]:
    """Name, value and deciding places of each fact."""
    found = document["work"]
    if found:
        yield from _work_facts(found)
    on_loss, checkpoints = document["on_loss"], document["checkpoints"]
    yield (
        "When a rank is lost",
        joined((element("strong", on_loss["rule"]), f": {on_loss['guarantee']}. {_why(on_loss)}")),
        tuple(place for place in (on_loss["decided_by"], on_loss["limited_by"]) if place),
    )
    every = checkpoints["every"]
    cadence = f"every {plural(every, 'step')}" if isinstance(every, int) else every
    yield "Checkpoints", f"{cadence}, the newest {checkpoints['keep']} kept", (checkpoints["decided_by"],)
    detection = document["detection"]
    limits = detection["limits_s"].items()
    listed = ", ".join(f"{name.replace('_', ' ')} {limit_s:g} s" for name, limit_s in limits)
    yield "A lost rank is found within", listed, (detection["decided_by"],)
    price = document["cost"]["usd_per_device_hour"]
    if price is not None:
        source = document["cost"]["price_source"]
        warning = document["cost"]["price_warning"]
        said = f"{source}; {warning}" if warning else source
        yield "Price", joined((f"{dollars(price)} per device and hour ", element("small", said))), ()
    yield "Job", joined((element("code", document["digest"][:16]), " of the resolved job file")), ()


def _why(on_loss: Facts) -> str:
    reason = on_loss["reason"]
    return f"{reason[:1].upper()}{reason[1:]}."


def _work_facts(found: Facts) -> Iterator[tuple[str, Child, tuple[str, ...]]]:
    origins = found["decided_by"]

    def place(key: str) -> tuple[str, ...]:
        return (origins[key],) if key in origins else ()

    batch = f"{count(found['batch'])} samples of {count(found['sequence'])} tokens: {count(found['tokens'])} tokens"
    yield "Batch", f"{batch}, over {plural(found['replicas'], 'replica')}", place("train.batch")
    order = (
        "added in one fixed tree"
        if found["has_fixed_order"]
        else "one a replica, added in the backend's order"
    )
    yield "Shares", f"{count(found['parts'])}, {order}", place("fault_tolerance.shares")
    microbatch = (
        f"{plural(found['microbatch'], 'sample')}; {count(found['microbatches_per_part'])} in a share, "
        f"{plural(found['parts_per_replica'], 'share')} a replica"
    )
    yield "Microbatch", microbatch, place("train.microbatch")
    yield "Compute", found["compute"], place("train.compute")
    useful, again = found["useful_flops"], found["recomputed_flops"]
    yield (
        "FLOPs of a step",
        f"{flops(useful['causal'])} with causal attention, {flops(useful['full'])} with full; "
        f"{flops(again['causal'])} computed again; {percent(found['repeated_share'])} repeated or on padding",
        (),
    )


def assumptions(document: Facts) -> Markup | None:
    """What the figures rest on; nothing where there are none."""
    if not document["groups"]:
        return None
    cost = document["cost"]
    items = (element("li", assumption) for assumption in cost["assumptions"])
    interval = element("p", f"Intervals: {cost['interval']}.", class_="about") if cost["interval"] else None
    return element(
        "section",
        element("h2", "What the figures rest on"),
        interval,
        element("ul", *items),
        id="assumptions",
    )
