"""Reports and comparisons as plain text that fits the terminal."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import fsum
from textwrap import wrap

from trimtab.ledger.accounts import ENTRIES, Account, layer_of
from trimtab.ledger.advice import ADVICE, biggest_leak
from trimtab.ledger.comparison import Comparison, EntryPair, Outcome, Setting
from trimtab.ledger.recoveries import Recovery
from trimtab.ledger.report import RunReport
from trimtab.ledger.storage import STORAGE_PRICE_KEY, moment_of
from trimtab.terms import Layer, format_bytes, format_seconds

MIN_WIDTH = 40
"""Narrower terminals get lines of this width."""

_UNKNOWN = "-"
_NS_PER_S = 10**9
_Row = Sequence[str]


def render_report(report: RunReport, *, width: int = 80) -> str:
    """A run's report: what it did, the layers with their leaks and dollars, what would close the biggest.

    Args:
        report: Of a run that is over, or in progress.
        width: Columns of the terminal. Less important columns are left out where it is narrow.
    """
    width = max(width, MIN_WIDTH)
    return _page(
        [
            _summary(report, width),
            _table(_ledger_rows(report.account), width, drop_first=("time", "dollars")),
            _storage(report, width),
            _leak(report.account, width),
            _recoveries(report.recoveries, width),
            _paragraph(f"error: {report.error}", width) if report.error else [],
        ]
    )


def render_comparison(comparison: Comparison, *, width: int = 80) -> str:
    """Two runs side by side: the settings that differ, what came of it, and where their time went."""
    width = max(width, MIN_WIDTH)
    ledger = [pair for pair in comparison.ledger if pair.first_ns or pair.second_ns]
    outcomes = [_outcome_row(outcome) for outcome in comparison.outcomes]
    return _page(
        [
            _paragraph(f"first: {comparison.first}", width)
            + _paragraph(f"second: {comparison.second}", width),
            _settings(comparison.settings, width),
            _table([("outcome", "first", "second", "change"), *outcomes], width),
            _table([("device time", "first", "second", "change"), *map(_pair_row, ledger)], width),
        ]
    )


def _page(parts: Iterable[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _summary(report: RunReport, width: int) -> list[str]:
    figures = [
        f"loss {_figure(report.loss)}",
        f"evaluation {_figure(report.eval_loss)}",
        f"{report.tokens} tokens",
        f"{_figure(report.tokens_per_s)} tokens/s",
    ]
    lines = [
        f"{report.run}: {report.state.value}, {_count(report.steps, 'step')}",
        ", ".join(figures),
        f"weights {report.weights_sha256 or _UNKNOWN}",
        f"in {report.directory}",
    ]
    return [part for line in lines for part in _paragraph(line, width)]


def _ledger_rows(account: Account) -> list[_Row]:
    """The table of layers, each with those of its lines that hold time."""
    entries, dollars = account.entries(), account.dollars()
    rows: list[_Row] = [_ledger_row("all device time", account, account.allocated_ns, account.cost_usd)]
    for layer in Layer:
        lines = [entry for entry in ENTRIES if layer_of(entry) is layer]
        usd = fsum(dollars[entry] for entry in lines) if dollars else None
        rows.append(_ledger_row(layer.value, account, account.layers()[layer], usd))
        rows += [
            _ledger_row(f"  {entry.value}", account, entries[entry], dollars[entry] if dollars else None)
            for entry in lines
            if entries[entry] and entry.value != layer.value
        ]
    devices = {device.device for device in account.devices}
    header = _count(len(devices), "device")
    table: list[_Row] = [(header, "share", "time", "dollars"), *rows]
    return table if dollars else [row[:-1] for row in table]


def _ledger_row(name: str, account: Account, ns: int, usd: float | None) -> _Row:
    share = f"{100 * ns / account.allocated_ns:.1f} %" if account.allocated_ns else _UNKNOWN
    return name, share, format_seconds(ns / _NS_PER_S), _dollars(usd)


def _storage(report: RunReport, width: int) -> list[str]:
    """What is paid whether devices are held or not: never a line among their time."""
    storage = report.storage
    if storage is None or not (storage.checkpoints or storage.num_untimed):
        return []
    price = f"no price known, see {STORAGE_PRICE_KEY}"
    if storage.usd_per_gb_month is not None:
        price = f"{_dollars(storage.cost_usd)} at ${storage.usd_per_gb_month:g} for a GB and month"
    head = (
        f"storage: {_count(len(storage.kept), 'checkpoint')} of {format_bytes(storage.kept_bytes)} kept, "
        f"{storage.gb_months:.3g} GB months by {moment_of(storage.now_unix_ns)}, {price}"
    )
    lines = _paragraph(head, width)
    device_usd = report.account.cost_usd
    if device_usd is not None and storage.cost_usd is not None:
        both = f"devices and storage together: {_dollars(device_usd + storage.cost_usd)}"
        lines += _paragraph(both, width, indent="  ")
    if storage.num_untimed:
        missing = f"{_count(storage.num_untimed, 'checkpoint')} of an earlier release not counted: nobody wrote down when"
        lines += _paragraph(missing, width, indent="  ")
    return lines


def _leak(account: Account, width: int) -> list[str]:
    leak = biggest_leak(account)
    if leak is None:
        return []
    ns, dollars = account.entries()[leak], account.dollars()
    price = f", {_dollars(dollars[leak])}" if dollars else ""
    head = f"biggest leak: {leak.value}, {100 * ns / account.allocated_ns:.1f} % of the device time{price}"
    return [*_paragraph(head, width), *_paragraph(ADVICE[leak], width, indent="  ")]


def _recoveries(recoveries: Sequence[Recovery], width: int) -> list[str]:
    lines = [line for recovery in recoveries for line in _paragraph(_recovery(recovery), width, indent="  ")]
    return ["failures:", *lines] if lines else []


def _recovery(recovery: Recovery) -> str:
    who = "" if recovery.rank is None else f", rank {recovery.rank}"
    resumed = "training did not go on"
    if recovery.resumed_s is not None:
        resumed = f"next commit after {format_seconds(recovery.resumed_s)}"
    return (
        f"step {recovery.step}{who}: {recovery.cause}; known after {format_seconds(recovery.detect_s)}, {resumed}, "
        f"{_count(recovery.steps_lost, 'step')} lost"
    )


def _settings(settings: Sequence[Setting], width: int) -> list[str]:
    lines = [line for setting in settings for line in _setting(setting, width)]
    return ["settings that differ:", *lines] if lines else ["no setting differs"]


def _setting(setting: Setting, width: int) -> list[str]:
    """One difference; of texts of several lines, such as formulas, the lines that only one of them has."""
    first, second = str(setting.first).splitlines(), str(setting.second).splitlines()
    if max(len(first), len(second)) <= 1:
        return _paragraph(f"{setting.key}: {setting.first} -> {setting.second}", width, indent="  ")
    changes = [f"- {line}" for line in first if line not in second]
    changes += [f"+ {line}" for line in second if line not in first]
    head = _paragraph(f"{setting.key}:", width, indent="  ")
    return head + [line for change in changes for line in _paragraph(change, width, indent="    ")]


def _outcome_row(outcome: Outcome) -> _Row:
    name, show = _SHOWN.get(outcome.name, (outcome.name, _figure))
    return name, show(outcome.first), show(outcome.second), _change(outcome)


def _pair_row(pair: EntryPair) -> _Row:
    times = Outcome(name=pair.entry.value, first=pair.first_ns, second=pair.second_ns)
    return times.name, _duration(times.first), _duration(times.second), _change(times)


def _table(rows: Sequence[_Row], width: int, *, drop_first: Sequence[str] = ("change",)) -> list[str]:
    """Rows under a header, names to the left and figures to the right.

    Columns named in ``drop_first`` go where the width does not allow them; if that is not enough, each figure
    gets a line of its own.
    """
    for dropped in ("", *drop_first):
        rows = [
            tuple(cell for cell, title in zip(row, rows[0], strict=True) if title != dropped) for row in rows
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        if sum(widths) + 2 * (len(widths) - 1) <= width:
            return ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    return [line for row in rows[1:] for line in (row[0], *_named_figures(row, rows[0]))]


def _aligned(row: _Row, widths: Sequence[int]) -> Iterator[str]:
    yield row[0].ljust(widths[0])
    for cell, cell_width in zip(row[1:], widths[1:], strict=True):
        yield cell.rjust(cell_width)


def _named_figures(row: _Row, titles: _Row) -> Iterator[str]:
    for cell, title in zip(row[1:], titles[1:], strict=True):
        yield f"    {title} {cell}"


def _paragraph(text: str, width: int, *, indent: str = "") -> list[str]:
    """Lines of at most ``width``; what a terminal would not print as a character becomes a space."""
    return [
        part
        for line in text.splitlines()
        for part in wrap(
            "".join(character if character.isprintable() else " " for character in line),
            width,
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
        )
    ]


def _figure(number: float | None) -> str:
    if number is None:
        return _UNKNOWN
    return str(number) if isinstance(number, int) else f"{number:.5g}"


def _duration(ns: float | None) -> str:
    return _UNKNOWN if ns is None else format_seconds(ns / _NS_PER_S)


def _dollars(usd: float | None) -> str:
    """Cents, or four digits after the point where cents would say nothing."""
    if usd is None:
        return _UNKNOWN
    if usd >= 1 or usd == 0:
        return f"${usd:,.2f}"
    return f"${usd:.4f}" if usd >= 0.0001 else "<$0.0001"


def _change(outcome: Outcome) -> str:
    return _UNKNOWN if outcome.change is None else f"{100 * outcome.change:+.1f} %"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_SHOWN: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "allocated_ns": ("allocated", _duration),
    "cost_usd": ("cost", _dollars),
}
"""How outcomes with a unit in their name are shown."""
