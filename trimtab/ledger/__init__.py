"""What happened, and what did it cost?"""

from trimtab.ledger.accounts import ENTRIES, Account, DeviceTime, Entry, Label, account, layer_of
from trimtab.ledger.advice import ADVICE, biggest_leak
from trimtab.ledger.clocks import CLOCK_FILE_BYTES, ClockFile, ClockReading, read_clocks
from trimtab.ledger.comparison import Comparison, EntryPair, Outcome, Setting, compare, flat_settings
from trimtab.ledger.digests import WeightsDigest, weights_digest
from trimtab.ledger.errors import AccountError, ClockFileError, JournalError
from trimtab.ledger.events import EventKind, Incarnation, RunRecords
from trimtab.ledger.hosts import clock_offsets_ns, moved
from trimtab.ledger.journal import Event, Journal, encode_event, read_events, read_journal
from trimtab.ledger.recoveries import Recovery, recoveries_of
from trimtab.ledger.rendering import render_comparison, render_report
from trimtab.ledger.report import RunReport, run_report
from trimtab.ledger.series import Metric, Point, all_points, default_series
from trimtab.ledger.storage import HOURS_PER_MONTH, STORAGE_PRICE_KEY, Storage, StoredCheckpoint, storage_of

__all__ = [
    "ADVICE",
    "CLOCK_FILE_BYTES",
    "ENTRIES",
    "HOURS_PER_MONTH",
    "STORAGE_PRICE_KEY",
    "Account",
    "AccountError",
    "ClockFile",
    "ClockFileError",
    "ClockReading",
    "Comparison",
    "DeviceTime",
    "Entry",
    "EntryPair",
    "Event",
    "EventKind",
    "Incarnation",
    "Journal",
    "JournalError",
    "Label",
    "Metric",
    "Outcome",
    "Point",
    "Recovery",
    "RunRecords",
    "RunReport",
    "Setting",
    "Storage",
    "StoredCheckpoint",
    "WeightsDigest",
    "account",
    "all_points",
    "biggest_leak",
    "clock_offsets_ns",
    "compare",
    "default_series",
    "encode_event",
    "flat_settings",
    "layer_of",
    "moved",
    "read_clocks",
    "read_events",
    "read_journal",
    "recoveries_of",
    "render_comparison",
    "render_report",
    "run_report",
    "storage_of",
    "weights_digest",
]
