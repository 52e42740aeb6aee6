"""Two runs side by side: what differs in their settings, and what that did."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trimtab.ledger.accounts import ENTRIES, Entry
from trimtab.ledger.report import RunReport

UNSET = "(not set)"
"""Stands for a setting that one of the runs does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A setting in which two runs differ."""

    key: str
    """Dotted path in the resolved job file."""
    first: Any
    second: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One number of two runs."""

    name: str
    first: float | None
    second: float | None

    @property
    def change(self) -> float | None:
        """By which fraction of its size the first grew to be the second; None if that has no meaning."""
        if self.first is None or self.second is None or not self.first:
            return None
        return (self.second - self.first) / abs(self.first)


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryPair:
    """One line of the ledger in two runs."""

    entry: Entry
    first_ns: int
    second_ns: int
    first_usd: float | None
    second_usd: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What differs between two runs and what it did."""

    first: str
    second: str
    settings: Sequence[Setting]
    """In the order of their keys."""
    outcomes: Sequence[Outcome]
    ledger: Sequence[EntryPair]
    """Every line of the ledger, whether it differs or not."""

    def document(self) -> dict[str, Any]:
        """The comparison as JSON can hold it: what ``compare --json`` prints."""
        return {
            "first": self.first,
            "second": self.second,
            "settings": [asdict(setting) for setting in self.settings],
            "outcomes": [{**asdict(outcome), "change": outcome.change} for outcome in self.outcomes],
            "ledger": [asdict(pair) for pair in self.ledger],
        }


def compare(
    first: RunReport,
    second: RunReport,
    *,
    first_settings: Mapping[str, Any],
    second_settings: Mapping[str, Any],
) -> Comparison:
    """Set two runs side by side.

    Args:
        first: The run that the other is measured against.
        second: The other run.
        first_settings: The first run's resolved job file, nested as it is written.
        second_settings: The second run's.
    """
    return Comparison(
        first=first.directory,
        second=second.directory,
        settings=_differences(first_settings, second_settings),
        outcomes=_outcomes(first, second),
        ledger=_ledgers(first, second),
    )


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under dotted keys; a list is one value.

    >>> flat_settings({"train": {"steps": 200, "optimizer": {"adamw": {"betas": [0.9, 0.95]}}}})
    {'train.steps': 200, 'train.optimizer.adamw.betas': [0.9, 0.95]}
    """
    return dict(_leaves(settings, ""))


def _leaves(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Setting]:
    before, after = flat_settings(first), flat_settings(second)
    pairs = ((key, before.get(key, UNSET), after.get(key, UNSET)) for key in sorted(before | after))
    # 1 == True in Python; in a job file they are different answers.
    return [
        Setting(key=key, first=old, second=new)
        for key, old, new in pairs
        if old != new or isinstance(old, bool) != isinstance(new, bool)
    ]


def _outcomes(first: RunReport, second: RunReport) -> list[Outcome]:
    pairs = {
        "steps": (first.steps, second.steps),
        "loss": (first.loss, second.loss),
        "eval_loss": (first.eval_loss, second.eval_loss),
        "tokens": (first.tokens, second.tokens),
        "tokens_per_s": (first.tokens_per_s, second.tokens_per_s),
        "sent_bytes": (first.sent_bytes, second.sent_bytes),
        "recoveries": (len(first.recoveries), len(second.recoveries)),
        "allocated_ns": (first.account.allocated_ns, second.account.allocated_ns),
        "cost_usd": (first.account.cost_usd, second.account.cost_usd),
    }
    return [Outcome(name=name, first=before, second=after) for name, (before, after) in pairs.items()]


def _ledgers(first: RunReport, second: RunReport) -> list[EntryPair]:
    before_ns, after_ns = first.account.entries(), second.account.entries()
    before_usd, after_usd = first.account.dollars() or {}, second.account.dollars() or {}
    return [
        EntryPair(
            entry=entry,
            first_ns=before_ns[entry],
            second_ns=after_ns[entry],
            first_usd=before_usd.get(entry),
            second_usd=after_usd.get(entry),
        )
        for entry in ENTRIES
    ]
