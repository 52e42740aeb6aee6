import re
from dataclasses import replace
from datetime import date

import pytest

from trimtab.catalog import (
    STALE_AFTER_DAYS,
    PriceKind,
    UnknownNameError,
    accelerator_names,
    price_of,
    prices_of,
)
from trimtab.catalog.tables import csv_rows


def test_the_newest_price_is_the_median_of_its_day() -> None:
    """The cheapest would promise a market place's rate, the dearest one provider's list price."""
    price = price_of("H100-SXM-80GB")
    assert (price.as_of, price.provider, price.usd_per_device_hour) == ("2026-11-09", "RunPod-Secure", 3.99)


def test_a_provider_and_terms_can_be_chosen() -> None:
    """Whoever has a contract with one provider wants that provider's price."""
    assert price_of("H100-SXM-80GB", provider="AWS").usd_per_device_hour == 6.88
    spot = price_of("H200-SXM-141GB", provider="AWS", kind=PriceKind.SPOT)
    assert (spot.region, spot.usd_per_device_hour) == ("us-east-1", 3.3998)


def test_offers_come_newest_first_then_cheapest_and_undated_ones_last() -> None:
    """An undated price must not pass for today's."""
    offers = prices_of("A100-SXM-80GB")
    assert [(offer.as_of, offer.usd_per_device_hour) for offer in offers] == [
        ("2026-11-09", 1.39),
        ("2026-11-09", 1.79),
        ("2026-11-09", 3.4309),
        ("2026-09-20", 2.79),
        ("", 1.29),
    ]


@pytest.mark.parametrize(
    ("name", "provider", "message"),
    [
        ("H100-SXM-80G", None, "unknown on_demand price for 'H100-SXM-80G'(.|\n)*mean 'H100-SXM-80GB'"),
        ("MI300X", None, "unknown on_demand price for 'MI300X'"),
        ("MI300X", "AWS", "unknown on_demand price from AWS for 'MI300X'"),
        ("H100-SXM-80GB", "AMS", "unknown provider 'AMS'(.|\n)*mean 'AWS'"),
    ],
)
def test_without_a_price_there_is_an_error_not_a_zero(name: str, provider: str | None, message: str) -> None:
    """A run that seems to cost nothing is worse than one that must be told its price."""
    with pytest.raises(UnknownNameError, match=message):
        price_of(name, provider=provider)


@pytest.mark.parametrize(
    "row", csv_rows("prices.csv"), ids=lambda row: f"{row['provider']}-{row['accelerator']}"
)
def test_every_row_parses_and_states_source_and_date(row: dict[str, str]) -> None:
    """Prices halve within a year: one without source or date says nothing."""
    assert row["source"]
    assert re.fullmatch(r"\d{4}-\d{2}(-\d{2})?", row["as_of"]) or "date not seen" in row["source"]
    offers = prices_of(row["accelerator"], kind=PriceKind(row["kind"]), provider=row["provider"])
    assert float(row["usd_per_device_hour"]) in [offer.usd_per_device_hour for offer in offers]
    assert all(offer.usd_per_device_hour > 0 for offer in offers)


def test_devices_with_a_price_but_no_figures_are_known() -> None:
    """A price must reach its accelerator by name; those that have none there are listed here on purpose."""
    priced = {row["accelerator"] for row in csv_rows("prices.csv")}
    assert priced - set(accelerator_names()) == {"H100-NVL-94GB", "B300-SXM-262GB", "V100-16GB"}


@pytest.mark.parametrize(
    ("as_of", "age_days"),
    [
        ("2026-11-30", 0),
        ("2026-09-01", 90),
        ("2026-08-31", 91),
        ("2026-11", 29),
        ("2027-01-01", -32),
        ("", None),
    ],
)
def test_a_price_is_old_after_ninety_days_or_without_a_date(as_of: str, age_days: int | None) -> None:
    """Prices move by a fifth in that time: an old one must not pass for today's."""
    price = replace(price_of("H100-SXM-80GB"), as_of=as_of)
    assert price.age_days(date(2026, 11, 30)) == age_days
    assert price.is_stale(date(2026, 11, 30)) is (age_days is None or age_days > STALE_AFTER_DAYS)
    assert STALE_AFTER_DAYS == 90
