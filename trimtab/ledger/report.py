"""What a run did and what it cost, as one value: what ``run --json`` prints and ``report`` shows."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trimtab.ledger.accounts import Account, account
from trimtab.ledger.attempts import Attempt, attempts_of
from trimtab.ledger.errors import JournalError
from trimtab.ledger.events import EventKind, RunRecords, laps_of
from trimtab.ledger.recoveries import Recovery, recoveries_of
from trimtab.ledger.series import Metric, all_points, default_series
from trimtab.ledger.storage import Storage
from trimtab.terms import RunState

_NS_PER_S = 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """A run up to now, over all its attempts."""

    run: str
    directory: str
    state: RunState
    steps: int
    """Committed steps; those that were rolled back count once they are done again."""
    loss: float | None
    """Of the last commit; None if there is none or it was not finite."""
    eval_loss: float | None
    """Of the last evaluation; None likewise."""
    tokens: int
    """Tokens of the committed steps, each step once."""
    tokens_per_s: float | None
    """Those tokens over the time from each attempt's first step to its last commit, failures included."""
    sent_bytes: int
    """Payload that all ranks sent, in steps that were rolled back, too."""
    weights_sha256: str | None
    recoveries: Sequence[Recovery]
    account: Account
    error: str | None
    storage: Storage | None = None
    """What is paid beside devices; None if nobody has looked."""

    def document(self) -> dict[str, Any]:
        """The report as JSON can hold it: what ``run --json`` prints."""
        entries = self.account.entries()
        return {
            "run": self.run,
            "directory": self.directory,
            "state": self.state.value,
            "steps": self.steps,
            "loss": self.loss,
            "eval_loss": self.eval_loss,
            "tokens": self.tokens,
            "tokens_per_s": self.tokens_per_s,
            "weights_sha256": self.weights_sha256,
            "recoveries": [asdict(recovery) for recovery in self.recoveries],
            "ledger": {
                "allocated_ns": self.account.allocated_ns,
                "classes": {entry.value: ns for entry, ns in entries.items()},
                "unattributed_fraction": self.account.unattributed_fraction,
            },
            "cost_usd": self.account.cost_usd,
            "error": self.error,
            "storage": self.storage.document() if self.storage else None,
        }


def run_report(records: RunRecords, *, directory: str, storage: Storage | None = None) -> RunReport:
    """The report of a run from what it wrote.

    Args:
        records: Of a run that is over, or in progress.
        directory: The run's directory, as it is shown.
        storage: Of the same records, at the moment of the report; None where it is not asked for.

    Raises: AccountError and JournalError as ``account``.
    """
    attempts = attempts_of(records)
    losses = default_series(records, Metric.LOSS)
    evaluations = default_series(records, Metric.EVAL_LOSS)
    tokens = sum(int(point.value or 0) for point in default_series(records, Metric.TOKENS))
    training_ns = _training_ns(records, attempts)
    last = attempts[-1] if attempts else None
    finished = last.events(EventKind.FINISHED)[-1:] if last else []
    ending = finished[0].fields if finished else {}
    return RunReport(
        run=str(last.run.get("run", "")) if last else "",
        directory=directory,
        state=_state(ending.get("state")),
        steps=losses[-1].step if losses else 0,
        loss=losses[-1].value if losses else None,
        eval_loss=evaluations[-1].value if evaluations else None,
        tokens=tokens,
        tokens_per_s=tokens * _NS_PER_S / training_ns if training_ns else None,
        sent_bytes=sum(lap.sent_bytes for events in records.ranks.values() for lap in laps_of(events)),
        weights_sha256=ending.get("weights_sha256"),
        recoveries=recoveries_of(records),
        account=account(records),
        error=ending.get("error"),
        storage=storage,
    )


def _state(word: object) -> RunState:
    """The state that the last attempt finished in; one that did not finish is running, as far as it says."""
    if word is None:
        return RunState.RUNNING
    try:
        return RunState(str(word))
    except ValueError as error:
        raise JournalError(
            f"event 'finished': state is {word!r}, not one of {', '.join(RunState)}"
        ) from error


def _training_ns(records: RunRecords, attempts: Sequence[Attempt]) -> int:
    """Time from the first step's start to the last commit, summed over attempts."""
    commits = all_points(records, Metric.LOSS)
    total_ns = 0
    for number, attempt in enumerate(attempts, start=1):
        starts = [
            lap.start_ns
            for process in attempt.processes
            for lap in laps_of(records.ranks.get(process.incarnation, ()))[:1]
        ]
        ends = [point.t_ns for point in commits if point.attempt == number]
        total_ns += max(0, max(ends) - min(starts)) if starts and ends else 0
    return total_ns
