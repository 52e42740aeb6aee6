"""A study on disk: what is asked, all trials with their leases, and the words about them, in one SQLite file.

Every decision is one transaction that no other process can come between, and every word is on disk when it is said: a
worker that is killed at any moment leaves a whole study.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from trimtab.app.errors import StudyError
from trimtab.app.run_folders import create_run
from trimtab.cost.search.tuning import Value
from trimtab.policy.trials import Trial, TrialState, may_end

STUDY_FILE = "study.sqlite"
_BUSY_S = 60.0
"""How long to wait for another process's transaction; each takes milliseconds."""

_TABLES = sa.MetaData()
_ASKED = sa.Table("asked", _TABLES, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.JSON))
_TRIALS = sa.Table(
    "trials",
    _TABLES,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("devices", sa.Integer, nullable=False),
    sa.Column("owner", sa.Text),
    sa.Column("lease_until_s", sa.Float, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("spent_s", sa.Float, nullable=False),
    sa.Column("spent_usd", sa.Float, nullable=False),
    sa.Column("params", sa.JSON, nullable=False),
    sa.Column("outcome", sa.JSON),
)
_WORDS = sa.Table(
    "words",
    _TABLES,
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("number", sa.Integer),
    sa.Column("what", sa.Text, nullable=False),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a trial came to.

    Args:
        state: One that ends it.
        values: By objective, in their own units; empty unless it was measured.
        curve: Of the first objective by step, the smaller the better.
        reason: Why it has no values, or why it was cut short; empty otherwise.
        seconds: From its start to its end.
        usd: Of its devices; 0 without a price.
        folder: Of its run; empty if none was made.
        excess: By what share of the limit it exceeded the memory, if that is known.
    """

    state: TrialState
    values: Mapping[str, float] = field(default_factory=dict)
    curve: Mapping[int, float] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0
    usd: float = 0.0
    folder: str = ""
    excess: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRow:
    """A trial of a study.

    Args:
        trial: As the rules see it.
        params: Its values, one a knob.
        outcome: None until it has ended.
    """

    trial: Trial
    params: Mapping[str, Value]
    outcome: Outcome | None = None


class Study:
    """A study in its folder; as many processes as like may have it open.

    Args:
        folder: That holds ``study.sqlite``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._engine = sa.create_engine(
            f"sqlite:///{folder / STUDY_FILE}", connect_args={"timeout": _BUSY_S}, poolclass=sa.NullPool
        )
        # sqlite3 begins transactions late; said by hand, a transaction excludes all others from its first line on.
        sa.event.listen(self._engine, "connect", _leave_begin_to_us)
        sa.event.listen(self._engine, "begin", _begin_at_once)

    @contextmanager
    def transaction(self) -> Iterator["Transaction"]:
        """Read and change the study while nobody else does.

        Raises: StudyError if the file cannot be read or written.
        """
        try:
            with self._engine.begin() as connection:
                yield Transaction(connection)
        except DBAPIError as error:
            raise StudyError(f"{self.folder / STUDY_FILE}: {error.orig}") from error

    def rows(self) -> list[TrialRow]:
        """All trials, by number."""
        with self.transaction() as now:
            return now.rows()

    def asked(self) -> dict[str, Any]:
        """What is asked, as it was given to ``create_study``, and what was noted beside it."""
        with self.transaction() as now:
            return now.notes()


def create_study(runs: Path, name: str, asked: Mapping[str, Any]) -> Study:
    """A new study in a folder ``<name>-<N>`` among the runs.

    Raises: RunStateError if the system refuses.
    """
    folder = create_run(runs, name)
    study = Study(folder)
    with study.transaction() as now:
        now.make_tables()
        for key, value in asked.items():
            now.note(key, value)
    return study


def is_study(folder: Path) -> bool:
    """Whether a folder holds one."""
    return (folder / STUDY_FILE).is_file()


class Transaction:
    """A study, held."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def make_tables(self) -> None:
        """In a new study."""
        _TABLES.create_all(self._connection)

    def notes(self) -> dict[str, Any]:
        """All that was noted, by key."""
        return {row.key: row.value for row in self._connection.execute(sa.select(_ASKED))}

    def note(self, key: str, value: Any) -> None:  # of JSON
        """Keep a value; one that was there goes."""
        self._connection.execute(sa.delete(_ASKED).where(_ASKED.c.key == key))
        self._connection.execute(sa.insert(_ASKED).values(key=key, value=value))

    def rows(self) -> list[TrialRow]:
        """All trials, by number."""
        return [
            _row(found) for found in self._connection.execute(sa.select(_TRIALS).order_by(_TRIALS.c.number))
        ]

    def add(self, trial: Trial, params: Mapping[str, Value]) -> None:
        """A new trial."""
        self._connection.execute(sa.insert(_TRIALS).values(**_columns(trial), params=dict(params)))

    def change(self, trial: Trial) -> None:
        """Where a trial stands now."""
        self._connection.execute(
            sa.update(_TRIALS).where(_TRIALS.c.number == trial.number).values(**_columns(trial))
        )

    def renew(self, number: int, owner: str, until_s: float) -> bool:
        """Hold a trial for longer; False if somebody else holds it, or nobody."""
        held = (_TRIALS.c.number == number) & (_TRIALS.c.owner == owner)
        changed = self._connection.execute(
            sa.update(_TRIALS)
            .where(held, _TRIALS.c.state == TrialState.RUNNING.value)
            .values(lease_until_s=until_s)
        )
        return changed.rowcount == 1

    def end(self, number: int, outcome: Outcome) -> bool:
        """End a trial with what it came to; False if somebody had ended it before.

        What its attempts cost is added in either case: it was spent.
        """
        row = next(row for row in self.rows() if row.trial.number == number)
        spent = replace(
            row.trial,
            spent_s=row.trial.spent_s + outcome.seconds,
            spent_usd=row.trial.spent_usd + outcome.usd,
        )
        if not may_end(row.trial):
            self.change(spent)
            return False
        self.change(replace(spent, state=outcome.state, owner=None, lease_until_s=0.0))
        self._connection.execute(
            sa.update(_TRIALS).where(_TRIALS.c.number == number).values(outcome=_outcome_document(outcome))
        )
        return True

    def say(self, at_s: float, number: int | None, what: str) -> None:
        """Add a word about a trial, or about the study; none is ever changed."""
        self._connection.execute(sa.insert(_WORDS).values(at_s=at_s, number=number, what=what))

    def words(self) -> Sequence[tuple[float, int | None, str]]:
        """All that was said, in order."""
        found = self._connection.execute(sa.select(_WORDS.c.at_s, _WORDS.c.number, _WORDS.c.what))
        return [(row.at_s, row.number, row.what) for row in found]


def _leave_begin_to_us(connection: Any, record: Any) -> None:  # the driver's own
    connection.isolation_level = None


def _begin_at_once(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _columns(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state.value,
        "devices": trial.devices,
        "owner": trial.owner,
        "lease_until_s": trial.lease_until_s,
        "attempts": trial.attempts,
        "spent_s": trial.spent_s,
        "spent_usd": trial.spent_usd,
    }


def _row(found: Any) -> TrialRow:  # a row of the driver
    outcome = found.outcome
    return TrialRow(
        trial=Trial(
            number=found.number,
            state=TrialState(found.state),
            devices=found.devices,
            owner=found.owner,
            lease_until_s=found.lease_until_s,
            attempts=found.attempts,
            spent_s=found.spent_s,
            spent_usd=found.spent_usd,
        ),
        params=found.params,
        outcome=_outcome(outcome) if outcome else None,
    )


def _outcome_document(outcome: Outcome) -> dict[str, Any]:
    return {
        "state": outcome.state.value,
        "values": dict(outcome.values),
        "curve": {str(step): value for step, value in outcome.curve.items()},
        "reason": outcome.reason,
        "seconds": outcome.seconds,
        "usd": outcome.usd,
        "folder": outcome.folder,
        "excess": outcome.excess,
    }


def _outcome(document: Mapping[str, Any]) -> Outcome:
    return Outcome(
        state=TrialState(document["state"]),
        values=document["values"],
        curve={int(step): value for step, value in document["curve"].items()},
        reason=document["reason"],
        seconds=document["seconds"],
        usd=document["usd"],
        folder=document["folder"],
        excess=document["excess"],
    )
