"""What an hour of a device was offered for, by whom and when."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from trimtab.catalog.errors import UnknownNameError
from trimtab.catalog.tables import csv_rows


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


def prices_of(
    accelerator: str, *, kind: PriceKind = PriceKind.ON_DEMAND, provider: str | None = None
) -> tuple[Price, ...]:
    """Every offer of a device on these terms, newest first, then cheapest; empty if none is known."""
    offers = [
        price
        for price in _prices()
        if price.accelerator == accelerator and price.kind is kind and provider in (None, price.provider)
    ]
    offers.sort(key=lambda price: price.usd_per_device_hour)
    offers.sort(key=lambda price: price.as_of, reverse=True)  # stable: cheapest first within a day
    return tuple(offers)


def price_of(
    accelerator: str, *, kind: PriceKind = PriceKind.ON_DEMAND, provider: str | None = None
) -> Price:
    """The newest offer of a device on these terms; of several with one date the (lower) median.

    A dated offer of one provider, not what a user pays: a price in the job file goes before it.
    Raises: UnknownNameError for an unknown provider, and if there is none; the message lists what has
        such a price.
    """
    _refuse_unknown_provider(provider)
    offers = prices_of(accelerator, kind=kind, provider=provider)
    if not offers:
        terms = f"{kind} price from {provider} for" if provider else f"{kind} price for"
        raise UnknownNameError(terms, accelerator, _priced(kind, provider))
    newest = [price for price in offers if price.as_of == offers[0].as_of]
    return newest[(len(newest) - 1) // 2]


def _refuse_unknown_provider(provider: str | None) -> None:
    providers = {price.provider for price in _prices()}
    if provider is not None and provider not in providers:
        raise UnknownNameError("provider", provider, providers)


def _priced(kind: PriceKind, provider: str | None) -> set[str]:
    return {
        price.accelerator for price in _prices() if price.kind is kind and provider in (None, price.provider)
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
