"""Memory of the ranks by class against what a device has, and over the step."""

from collections.abc import Iterable, Iterator, Sequence

from trimtab.app.pages.facts import Facts
from trimtab.app.pages.markup import Markup, element
from trimtab.app.pages.quantities import UNKNOWN, percent
from trimtab.app.pages.rank_groups import group_labels, group_name
from trimtab.app.pages.sections.bars import Scale, bar, legend
from trimtab.app.pages.tables import Cell, Column, TableRow, table
from trimtab.terms import format_bytes

_LEAST_SHARE = 0.1
"""Share of a device that the largest peak must take for bars to be drawn against the whole device."""


def memory(document: Facts) -> Markup | None:
    """A bar for each rank group at its peak, its parts of the step beneath, and the figures as a table."""
    groups, device_bytes = document["groups"], document["where"]["device_bytes"]
    if not groups:
        return None
    most = max(group["memory"]["peak_bytes"] for group in groups)
    scale = _scale(most, device_bytes)
    worst = max(groups, key=lambda group: group["memory"]["peak_bytes"])
    blocks = (
        _group(group, label, scale, device_bytes, is_open=group is worst)
        for group, label in zip(groups, group_labels(groups), strict=True)
    )
    return element(
        "section",
        element("h2", "Memory"),
        element("p", _about(scale, device_bytes), class_="about"),
        legend(_classes(groups)),
        *blocks,
        _peak_table(groups),
        id="memory",
    )


def _scale(most: int, device_bytes: int | None) -> Scale:
    if device_bytes is None or most < _LEAST_SHARE * device_bytes:
        return Scale(most=most, limit=None, shown=format_bytes)
    limit = device_bytes if most > device_bytes else None
    return Scale(most=max(most, device_bytes), limit=limit, shown=format_bytes)


def _about(scale: Scale, device_bytes: int | None) -> str:
    what = "What one rank of each group holds at the peak of the step, by class; open a group for the parts of the step."
    if device_bytes is None:
        return f"{what} The memory of the devices is not known: the longest bar is the largest peak."
    if scale.most < device_bytes:
        return (
            f"{what} A device has {format_bytes(device_bytes)}, far more than is needed: "
            "the longest bar is the largest peak."
        )
    if scale.limit is None:
        return f"{what} The whole width is the {format_bytes(device_bytes)} of a device."
    return f"{what} The line stands at the {format_bytes(device_bytes)} of a device."


def _classes(groups: Sequence[Facts]) -> Iterator[str]:
    """Classes that hold anything at any time, in the order of the document."""
    moments = [moment["classes"] for group in groups for moment in group["memory"]["moments"]]
    yield from (name for name in moments[0] if any(classes[name] for classes in moments))


def _group(group: Facts, label: Markup, scale: Scale, device_bytes: int | None, *, is_open: bool) -> Markup:
    found = group["memory"]
    moments = {moment["moment"]: moment for moment in found["moments"]}
    peak = moments[found["peak"]]
    of_device = f", {percent(found['peak_bytes'] / device_bytes)}" if device_bytes else ""
    told = element(
        "span",
        element("span", label, class_="name"),
        element("span", f"{format_bytes(found['peak_bytes'])}{of_device}", class_="number"),
        class_="row bad" if found["fits"] is False else "row",
    )
    summary = element("summary", told, bar(peak["classes"], scale, label=f"{group_name(group)} at the peak"))
    parts = (_moment(moment, scale, is_peak=moment is peak) for moment in found["moments"])
    return element("details", summary, *parts, class_="bars", open=is_open)


def _moment(moment: Facts, scale: Scale, *, is_peak: bool) -> Markup:
    name = f"{moment['moment']}, the peak" if is_peak else moment["moment"]
    told = element(
        "span",
        element("span", name, class_="name"),
        element("span", format_bytes(moment["total_bytes"]), class_="number"),
        class_="row",
    )
    return element("div", told, bar(moment["classes"], scale, label=moment["moment"]), class_="moment")


def _peak_table(groups: Sequence[Facts]) -> Markup:
    """The bytes of every class at the peak, and what is kept in host memory."""
    names = list(_classes(groups))
    has_host = any(group["memory"]["host_bytes"] for group in groups)
    columns = [Column("Group"), Column("Peak in"), *(Column(name, is_number=True) for name in names)]
    columns.append(Column("total", is_number=True))
    if has_host:
        columns.append(Column("on the host", is_number=True))
    rows = (
        TableRow((label, *_peak_cells(group["memory"], names, has_host=has_host)))
        for group, label in zip(groups, group_labels(groups), strict=True)
    )
    return table("Bytes of one rank at its peak", columns, rows, is_sortable=True)


def _peak_cells(found: Facts, names: Iterable[str], *, has_host: bool) -> Iterator[Cell | str]:
    peak = next(moment for moment in found["moments"] if moment["moment"] == found["peak"])
    yield found["peak"]
    for name in names:
        yield _size(peak["classes"][name])
    yield _size(peak["total_bytes"])
    if has_host:
        yield _size(found["host_bytes"])


def _size(size: int) -> Cell:
    return Cell(format_bytes(size) if size else UNKNOWN, size)
