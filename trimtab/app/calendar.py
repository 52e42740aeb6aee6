"""Which day is it? Asked once a command, at its border; everything below takes the answer as a value."""

import os
from datetime import UTC, date, datetime


def today() -> date:
    """The date in UTC; that of SOURCE_DATE_EPOCH where it is set, so that a document can be made again as it was.

    Source of the variable: https://reproducible-builds.org/specs/source-date-epoch/
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.fromtimestamp(int(epoch), UTC) if epoch.isdecimal() else datetime.now(UTC)
    return now.date()
