"""A price table of the user's own: what it replaces, and how its mistakes are named."""

import pytest

from trimtab.catalog import PriceKind, PricesError, price_of, prices_of, read_prices
from trimtab.catalog.tables import csv_rows

HEADER = "as_of,provider,accelerator,usd_per_device_hour"


def test_own_prices_go_before_the_catalog_for_the_devices_they_name() -> None:
    """Whoever has a contract plans with it, and keeps the catalog for everything else."""
    own = read_prices(f"{HEADER}\n2026-01,contract,H100-SXM-80GB,1.25\n", source="own.csv")
    found = price_of("H100-SXM-80GB", own=own)
    assert (found.provider, found.usd_per_device_hour, found.as_of) == ("contract", 1.25, "2026-01")
    assert (found.kind, found.source) == (PriceKind.ON_DEMAND, "own.csv:2")
    assert price_of("A100-SXM-80GB", own=own) == price_of("A100-SXM-80GB")
    spot = prices_of("H100-SXM-80GB", kind=PriceKind.SPOT, own=own)
    assert spot == prices_of("H100-SXM-80GB", kind=PriceKind.SPOT)


def test_the_catalogs_own_file_is_such_a_table() -> None:
    """A user copies it, changes what is theirs, and gives it back; rows without a date are the catalog's alone."""
    names = list(csv_rows("prices.csv")[0])
    rows = [row for row in csv_rows("prices.csv") if row["as_of"]]
    text = "\n".join([",".join(names), *(",".join(row.values()) for row in rows)])
    own = read_prices(text, source="copy.csv")
    assert len(own) == len(rows) > 30
    assert price_of("H100-SXM-80GB", own=own) == price_of("H100-SXM-80GB")


def test_spreadsheets_are_read_as_they_come() -> None:
    """Quotes, spaces, empty lines, any order of columns, and lines that end as on Windows."""
    text = (
        'accelerator, provider,"usd_per_device_hour" ,as_of,region\r\n\r\n'
        ' H100-SXM-80GB , "us, ""them""",0,2026-11-30,"a, b"\r\n'
    )
    (offer,) = read_prices(text, source="own.csv")
    assert (offer.provider, offer.region, offer.usd_per_device_hour) == ('us, "them"', "a, b", 0.0)
    assert offer.source == "own.csv:3"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["1:1  no header; its columns are as_of, provider"]),
        (HEADER, ["2:1  no offer follows the header"]),
        (f"{HEADER},kind,regiom\n", ["1:53  unknown column 'regiom'", "Did you mean 'region'?"]),
        (f"{HEADER},as_of\n2026,x,y,1,2\n", ["1:48  column 'as_of' stands there twice"]),
        ("as_of,provider,accelerator\n", ["1:1  column 'usd_per_device_hour' is missing"]),
        (
            f'{HEADER}\n2026-11-31,,H100-SXM-80,"1,10"\n',
            [
                "2:1  as_of is '2026-11-31', not a date such as 2026-11-30 or 2026-11",
                "2:12  provider is empty",
                "2:13  accelerator is 'H100-SXM-80', which the catalog does not know.  Did you mean 'H100-SXM-80GB'?",
                "2:25  usd_per_device_hour is '1,10', not a number of at least 0 such as 3.99",
            ],
        ),
        (f"{HEADER}\n,x,H100-SXM-80GB,1\n", ["2:1  as_of is ''"]),
        (f"{HEADER}\n2026-11,x,H100-SXM-80GB,nan\n", ["2:25  usd_per_device_hour is 'nan'"]),
        (f"{HEADER}\n2026-11,x,H100-SXM-80GB,-1\n", ["2:25  usd_per_device_hour is '-1'"]),
        (f"{HEADER}\n2026-11,x\n", ["2:9  2 fields under 4 columns"]),
        (f'{HEADER}\n2026-11,"x,H100-SXM-80GB,1\n', ["2:9  a double quote is not closed on this line"]),
        (
            f"{HEADER},kind\n2026-11,x,H100-SXM-80GB,1,spott\n",
            ["2:27  kind is 'spott'", "Did you mean 'spot'?"],
        ),
        (
            f"{HEADER},devices_per_instance\n2026-11,x,H100-SXM-80GB,1,eight\n",
            ["2:27  devices_per_instance is 'eight', not a whole number of at least 1"],
        ),
    ],
)
def test_every_mistake_is_named_with_line_and_column(text: str, problems: list[str]) -> None:
    """A price that is passed over in silence becomes a plan at another one."""
    with pytest.raises(PricesError) as caught:
        read_prices(text, source="own.csv")
    for problem in problems:
        assert problem in str(caught.value)
    assert all(line.startswith("own.csv:") for line in str(caught.value).splitlines())
