"""What an hour of a device was offered for, by whom and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from functools import cache

from trimtab.catalog.errors import UnknownNameError
from trimtab.catalog.tables import csv_rows

STALE_AFTER_DAYS = 90
"""Age at which a price is no longer shown without a warning. An index of H100 rose from 1.70 dollars an hour in October 2025
to 2.35 in March 2026 (both in prices.csv): in 90 days that is about a fifth."""


class PriceKind(StrEnum):
    """On what terms."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    ON_DEMAND_MEDIAN = "on_demand_median"  # over many providers
    INDEX = "index"  # a market index


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """One offer, as its source stated it."""

    as_of: str
    """Date in ISO form, perhaps without its day; empty if the source has none."""
    provider: str
    accelerator: str
    """A name of the catalog where it has such a device."""
    kind: PriceKind
    usd_per_device_hour: float
    devices_per_instance: int | None
    """Fewest devices that can be rented; None if not stated."""
    instance: str
    """The provider's own name, or empty."""
    region: str
    """Empty if not stated."""
    source: str

    def age_days(self, today: date) -> int | None:
        """Days since its date, of a month its first day; None without a date. Of a date to come it is below zero."""
        if not self.as_of:
            return None
        year, month, *day = map(int, self.as_of.split("-"))
        return (today - date(year, month, day[0] if day else 1)).days

    def is_stale(self, today: date) -> bool:
        """Whether it is older than ``STALE_AFTER_DAYS``, or nobody knows how old."""
        age = self.age_days(today)
        return age is None or age > STALE_AFTER_DAYS


def prices_of(
    accelerator: str,
    *,
    kind: PriceKind = PriceKind.ON_DEMAND,
    provider: str | None = None,
    own: Sequence[Price] = (),
) -> tuple[Price, ...]:
    """Every offer of a device on these terms, newest first, then cheapest; empty if none is known.

    Args:
        accelerator: Its name.
        kind: The terms.
        provider: The only one that counts; None: all.
        own: A user's table, which replaces the catalog for every device that it has an offer of on these terms.
    """
    offers = [
        price
        for price in _offers(own)
        if price.accelerator == accelerator and price.kind is kind and provider in (None, price.provider)
    ]
    offers.sort(key=lambda price: price.usd_per_device_hour)
    offers.sort(key=lambda price: price.as_of, reverse=True)  # stable: cheapest first within a day
    return tuple(offers)


def price_of(
    accelerator: str,
    *,
    kind: PriceKind = PriceKind.ON_DEMAND,
    provider: str | None = None,
    own: Sequence[Price] = (),
) -> Price:
    """The newest offer of a device on these terms; of several with one date the (lower) median.

    A dated offer of one provider, not what a user pays: a price in the job file goes before it. Arguments are those of
    ``prices_of``.
    Raises: UnknownNameError for an unknown provider, and if there is none; the message lists what has
        such a price.
    """
    offers = prices_of(accelerator, kind=kind, provider=provider, own=own)
    if not offers:
        known = _offers(own)
        _refuse_unknown_provider(provider, known)
        terms = f"{kind} price from {provider} for" if provider else f"{kind} price for"
        raise UnknownNameError(terms, accelerator, _priced(kind, provider, known))
    newest = [price for price in offers if price.as_of == offers[0].as_of]
    return newest[(len(newest) - 1) // 2]


def _offers(own: Sequence[Price]) -> Sequence[Price]:
    """The catalog's, without those that a user's own replace, and those."""
    replaced = {(price.accelerator, price.kind) for price in own}
    return [*(price for price in _prices() if (price.accelerator, price.kind) not in replaced), *own]


def _refuse_unknown_provider(provider: str | None, offers: Sequence[Price]) -> None:
    providers = {price.provider for price in offers}
    if provider is not None and provider not in providers:
        raise UnknownNameError("provider", provider, providers)


def _priced(kind: PriceKind, provider: str | None, offers: Sequence[Price]) -> set[str]:
    return {
        price.accelerator for price in offers if price.kind is kind and provider in (None, price.provider)
    }


@cache
def _prices() -> tuple[Price, ...]:
    return tuple(_read(row) for row in csv_rows("prices.csv"))


def _read(row: Mapping[str, str]) -> Price:
    return Price(
        as_of=row["as_of"],
        provider=row["provider"],
        accelerator=row["accelerator"],
        kind=PriceKind(row["kind"]),
        usd_per_device_hour=float(row["usd_per_device_hour"]),
        devices_per_instance=int(row["devices_per_instance"]) if row["devices_per_instance"] else None,
        instance=row["instance"],
        region=row["region"],
        source=row["source"],
    )
