"""Does each referee fail when its guarantee is broken?

    python referee/planted.py [NAME ...]

Plants one break after another, in a copy of a run's files or in a copy of the package with one line changed, and
sets the referee on it. Exits 0 only if every referee first holds on what is whole and then fails on what is broken.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import driving
import processes
import records
from driving import Workplace
from verdicts import RefereeError, Verdict, exit_with

GUARANTEE = "each referee fails on its planted break"
STEPS = 40


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One line of the package, and what stands in its place in the broken copy."""

    file: str
    line: str
    broken: str


ARRIVAL_ORDER = Edit(
    file="runtime/share_sum.py",
    line="        total = self._sum_range(top_level(self._num_shares), 0, parts, is_own=False)\n",
    broken="        total = sum(list(parts.values())[1:], next(iter(parts.values())))\n",
)
"""Pieces are added one after the other, as they came, instead of in the fixed tree."""

ALL_DIE = Edit(
    file="engines/local/rank_host.py",
    line="        how = describe_exit(code)\n",
    broken="        how = describe_exit(code)\n"
    "        for peer in self._ranks.values() if code else ():\n"
    "            peer.kill_group()\n",
)
"""One rank's death ends all, as torchrun would have it."""

STRAY_CHILD = Edit(
    file="runtime/tickets.py",
    line="    ticket: Mapping[str, Any] = json.loads(line)\n",
    broken="    ticket: Mapping[str, Any] = json.loads(line)\n"
    "    import subprocess\n"
    '    subprocess.Popen(["sleep", "300"], start_new_session=True)\n'
    '    open(f"/dev/shm/{os.environ[\'TRIMTAB_RUN\']}-{os.getpid()}", "w").write("left")\n',
)
"""Every rank starts a child in a session of its own, which nobody ends, and leaves a file in /dev/shm."""


@dataclass(frozen=True, kw_only=True)
class Referee:
    """A script, its arguments, and the package that the runs it makes are made with (None: the installed one)."""

    script: str
    arguments: tuple[str, ...] = ()
    package: Path | None = None

    def judge(self) -> tuple[int, str]:
        """Let it referee in a process of its own, sweep up after it; its exit code and what it said."""
        environment = dict(os.environ)
        if self.package is not None:
            environment["PYTHONPATH"] = str(self.package)
        script = Path(__file__).with_name(self.script)
        with subprocess.Popen(
            [sys.executable, str(script), *self.arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            said, _ = process.communicate()
        sweep(f"{driving.RUN_PREFIX}{process.pid}-")
        return process.returncode, said


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant every break that was asked for; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which (all): {', '.join(BREAKS)}")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in BREAKS:
            parser.error(f"no break {name!r}; there are {', '.join(BREAKS)}")
    verdict = Verdict(GUARANTEE)
    with driving.temporary_folder(is_kept=False) as folder:
        for name in options.names or BREAKS:
            (folder / name).mkdir()
            whole, broken = BREAKS[name](folder / name)
            code, said = whole.judge()
            verdict.check(code == 0, f"{name}, whole: exit code {code}, {last_line(said)}")
            code, said = broken.judge()
            is_found = code == 1 and "BROKEN:" in said
            verdict.check(is_found, f"{name}, broken: exit code {code}, {last_line(said)}")
    return verdict.conclude()


def flipped_bit(folder: Path) -> tuple[Referee, Referee]:
    """One bit of one weight in the exported file."""
    run = make_run(folder)
    target = folder / "exported.safetensors"
    ended = Workplace(folder, steps=STEPS).trimtab("checkpoints", "export", str(run), "--to", str(target))
    if ended.code:
        raise RefereeError(f"export gave exit code {ended.code}: {ended.stderr[-2000:]}")
    damaged = bytearray(target.read_bytes())
    damaged[-3] ^= 1
    (folder / "damaged.safetensors").write_bytes(damaged)
    whole = Referee(script="same_bits.py", arguments=(str(run), "--exported", str(target)))
    return whole, replace(whole, arguments=(str(run), "--exported", str(folder / "damaged.safetensors")))


def arrival_order(folder: Path) -> tuple[Referee, Referee]:
    """Gradients are added in the order of ranks instead of in the fixed tree."""
    whole = Referee(
        script="same_bits.py",
        arguments=("--drive", "--networks", "gpt", "--types", "fp32", "--devices", "1,4", "--steps", "12",
                   "--only", "ranks"),
    )  # fmt: skip
    return whole, replace(whole, package=broken_package(folder, ARRIVAL_ORDER))


def nobody_survives(folder: Path) -> tuple[Referee, Referee]:
    """The agent kills every rank when one dies."""
    whole = Referee(script="survivors.py", arguments=("--drive", "--quick"))
    return whole, replace(whole, package=broken_package(folder, ALL_DIE))


def one_nanosecond(folder: Path) -> tuple[Referee, Referee]:
    """One class of the report has one nanosecond more."""
    run = make_run(folder)
    report = Workplace(folder, steps=STEPS).trimtab("report", str(run), "--json").document
    report["ledger"]["classes"]["useful"] += 1
    (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")
    whole = Referee(script="ledger.py", arguments=(str(run),))
    return whole, replace(whole, arguments=(str(run), "--report", str(folder / "report.json")))


def untimed_sleep(folder: Path) -> tuple[Referee, Referee]:
    """A rank sleeps for seconds where no timer runs."""
    drive = ("--drive", "--steps", str(STEPS))
    sleep = "sleep:rank=0,step=5,ms=3000,class=none"
    whole = Referee(script="ledger.py", arguments=drive)
    return whole, replace(whole, arguments=(*drive, "--inject", sleep))


def share_twice(folder: Path) -> tuple[Referee, Referee]:
    """A rank that lived computed one share a second time."""
    run = make_run(folder)
    again = folder / "again" / run.name
    shutil.copytree(run, again)
    path = again / "journal" / "rank-1-0.jsonl"
    share = records.of_kind(records.read_journal(path), "share")[STEPS // 2]
    with path.open("a", encoding="utf-8") as journal:
        journal.write(json.dumps(share) + "\n")
    return Referee(script="ledger.py", arguments=(str(run),)), Referee(
        script="ledger.py", arguments=(str(again),)
    )


def two_histories(folder: Path) -> tuple[Referee, Referee]:
    """A rank has other weights than the rest after one step."""
    return altered_run(folder, "digest", lambda event: event | {"weights_sha256": "0" * 64})


def a_step_back(folder: Path) -> tuple[Referee, Referee]:
    """A rank says of a step that it was the one before, once more."""
    return altered_run(folder, "step", lambda event: event | {"step": event["step"] - 1})


def two_sides(folder: Path) -> tuple[Referee, Referee]:
    """A rank was alone in an epoch that the others entered without it."""
    return altered_run(folder, "entered", lambda event: event | {"members": [1]})


def altered_run(
    folder: Path, kind: str, alter: Callable[[records.Event], records.Event]
) -> tuple[Referee, Referee]:
    """A run that lost a rank, and a copy in which the last event of a kind of another rank is altered."""
    run = make_run(
        folder, "--set", "fault_tolerance.digest_every=1", "--inject", f"kill:rank=2,step={STEPS // 2}"
    )
    again = folder / "again" / run.name
    shutil.copytree(run, again)
    path = again / "journal" / "rank-1-0.jsonl"
    events = records.read_journal(path)
    last = max(number for number, event in enumerate(events) if event["event"] == kind)
    events[last] = alter(events[last])
    path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    whole = Referee(script="histories.py", arguments=(str(run),))
    return whole, replace(whole, arguments=(str(again),))


def stray_child(folder: Path) -> tuple[Referee, Referee]:
    """Every rank leaves a child and a file in shared memory."""
    whole = Referee(script="leftovers.py", arguments=("--times", "1", "--longest", "3"))
    return whole, replace(whole, package=broken_package(folder, STRAY_CHILD))


def forged_checkpoint(folder: Path) -> tuple[Referee, Referee]:
    """One bit of one weight of a checkpoint, and every digest in its manifest made right."""
    run = make_run(folder)
    forged = folder / "forged" / run.name
    shutil.copytree(run, forged)
    checkpoint = max((forged / "checkpoints").glob("step-*"), key=lambda path: path.stat().st_mtime)
    document = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
    entry = document["files"][0]
    contents = bytearray((checkpoint / entry["name"]).read_bytes())
    contents[-1] ^= 1
    (checkpoint / entry["name"]).write_bytes(contents)
    chunk_bytes = entry["chunks"]["chunk_bytes"]
    start = len(contents) - ((len(contents) - entry["chunks"]["head_bytes"] - 1) % chunk_bytes + 1)
    entry["chunks"]["sha256"][-1] = hashlib.sha256(contents[start:]).hexdigest()
    digests = b"".join(map(bytes.fromhex, entry["chunks"]["sha256"]))
    entry["sha256"] = hashlib.sha256(digests).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps(document), encoding="utf-8")
    whole = Referee(script="checkpoints.py", arguments=(str(run),))
    return whole, replace(whole, arguments=(str(forged),))


BREAKS: dict[str, Callable[[Path], tuple[Referee, Referee]]] = {
    "flipped-bit": flipped_bit,
    "arrival-order": arrival_order,
    "nobody-survives": nobody_survives,
    "one-nanosecond": one_nanosecond,
    "untimed-sleep": untimed_sleep,
    "share-twice": share_twice,
    "stray-child": stray_child,
    "two-histories": two_histories,
    "a-step-back": a_step_back,
    "two-sides": two_sides,
    "forged-checkpoint": forged_checkpoint,
}
"""Each makes, in a folder of its own, a referee on what is whole and the same referee on what is broken."""


def make_run(folder: Path, *arguments: str) -> Path:
    """A finished run with a checkpoint of its last step."""
    place = Workplace(folder, steps=STEPS, every=STEPS // 2)
    ended = place.run(*arguments)
    if ended.code:
        raise RefereeError(f"the run gave exit code {ended.code}: {ended.stderr[-2000:]}")
    return place.directory(ended.document)


def broken_package(folder: Path, edit: Edit) -> Path:
    """A copy of the package with one line changed; what to put into PYTHONPATH.

    Raises: RefereeError if the line does not stand exactly once where it should, so that nothing was planted.
    """
    found = importlib.util.find_spec("trimtab")  # where it is, without importing it
    assert found is not None
    assert found.submodule_search_locations is not None
    copy = folder / "broken" / "trimtab"
    shutil.copytree(found.submodule_search_locations[0], copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / edit.file
    text = path.read_text(encoding="utf-8")
    if text.count(edit.line) != 1:
        raise RefereeError(
            f"{edit.file} has the line {edit.line.strip()!r} {text.count(edit.line)} times, not once"
        )
    path.write_text(text.replace(edit.line, edit.broken), encoding="utf-8")
    return copy.parent


def sweep(prefix: str) -> None:
    """End what the runs of one referee left behind: processes and shared memory that bear their names."""
    for pid in processes.all_pids():
        if processes.run_of(pid).startswith(prefix):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for path in map(Path, processes.shared_memory_files()):
        if path.name.startswith(prefix):
            path.unlink(missing_ok=True)


def last_line(said: str) -> str:
    """What a referee concluded."""
    return said.strip().splitlines()[-1][:240] if said.strip() else "no word"


if __name__ == "__main__":
    exit_with(main)
