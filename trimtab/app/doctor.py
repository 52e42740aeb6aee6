"""The verb ``doctor``: is this machine fit to train?"""

import os
import platform
import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from trimtab.app.deciding import probe_file
from trimtab.app.machines import MachineFacts, find_machine
from trimtab.app.output import print_document
from trimtab.catalog import ProbeError, read_probe
from trimtab.terms import ExitCode, format_bytes

_MIN_DISK_BYTES = 2_000_000_000
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(==|>=)?\s*([0-9][0-9.]*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    found: str
    is_fit: bool
    advice: str = ""
    """What to do; empty if nothing is."""


def examine(*, is_json: bool) -> int:
    """Print what was found of this machine; exit code 1 if something keeps it from training."""
    findings = list(_findings(find_machine()))
    if is_json:
        fit = all(finding.is_fit for finding in findings)
        print_document({"is_fit": fit, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            mark = "ok " if finding.is_fit else "BAD"
            print(f"{mark} {finding.subject:18}{finding.found}")
            if finding.advice:
                print(f"{'':22}{finding.advice}")
    return ExitCode.DONE if all(finding.is_fit for finding in findings) else ExitCode.RUN_FAILED


def _findings(machine: MachineFacts) -> Iterator[Finding]:
    yield Finding(subject="python", found=platform.python_version(), is_fit=True)
    yield from _packages()
    yield Finding(subject="cores", found=str(machine.cores), is_fit=True)
    yield Finding(subject="memory", found=format_bytes(machine.memory_bytes), is_fit=True)
    yield _accelerators(machine)
    yield _probe()
    yield _disk(Path.cwd())
    yield _loopback()


def _packages() -> Iterator[Finding]:
    """Each package that Trimtab needs, by its metadata: nothing is imported."""
    for requirement in requires("trimtab") or ():
        if "extra ==" in requirement:
            continue
        match = _REQUIREMENT.match(requirement)
        assert match is not None, requirement
        yield _package(match[1], match[2] or "", match[3] or "")


def _package(name: str, relation: str, wanted: str) -> Finding:
    advice = f"pip install '{name}{relation}{wanted}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding(subject=name, found="not installed", is_fit=False, advice=advice)
    release = _release(found)
    is_fit = {"==": release == _release(wanted), ">=": release >= _release(wanted)}.get(relation, True)
    return Finding(subject=name, found=found, is_fit=is_fit, advice="" if is_fit else advice)


def _release(text: str) -> tuple[int, ...]:
    """The numbers of a version, without build and pre-release marks; zeros at the end do not count.

    >>> _release("2.13.0+cpu"), _release("13")
    ((2, 13), (13,))
    """
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", text)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _accelerators(machine: MachineFacts) -> Finding:
    found = "driver present" if machine.has_accelerator else "none: ranks compute on the CPU"
    return Finding(subject="accelerator", found=found, is_fit=True)


def _probe() -> Finding:
    """Whether the planner's map of this machine is of what is installed now; who trains can do without one."""
    path = probe_file()
    again = "trimtab probe takes a new one; parallelism: auto and plan --probe go by it"
    try:
        probe = read_probe(path.read_text(encoding="utf-8"), source=str(path))
    except FileNotFoundError:
        return Finding(subject="probe", found="none: parallelism: auto needs one", is_fit=True)
    except (OSError, UnicodeDecodeError, ProbeError) as error:
        return Finding(subject="probe", found=str(error), is_fit=True, advice=again)
    now = {"Python": platform.python_version(), "torch": _installed("torch")}
    other = [
        f"{name} {known}, now {now[name]}"
        for name, known in probe.versions.items()
        if now.get(name) and now[name] != known
    ]
    found = f"{probe.num_devices} ranks, taken at {probe.taken_at}" + (
        f", with {'; '.join(other)}" if other else ""
    )
    return Finding(subject="probe", found=found, is_fit=True, advice=again if other else "")


def _installed(name: str) -> str:
    """A version by metadata; empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _disk(folder: Path) -> Finding:
    free_bytes = shutil.disk_usage(folder).free
    is_writable = os.access(folder, os.W_OK)
    is_fit = is_writable and free_bytes >= _MIN_DISK_BYTES
    advice = (
        "" if is_fit else "free space, or set orchestration.runs to a folder with room that can be written"
    )
    found = f"{format_bytes(free_bytes)} free in {folder}" + ("" if is_writable else ", not writable")
    return Finding(subject="disk", found=found, is_fit=is_fit, advice=advice)


def _loopback() -> Finding:
    """Whether a local run can listen and connect: agents and ranks talk over 127.0.0.1, on free ports."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
            with socket.create_connection(address, timeout=2.0):
                pass
    except OSError as error:
        advice = "allow TCP on 127.0.0.1 (a firewall, or a container without a loopback interface)"
        return Finding(subject="ports", found=str(error), is_fit=False, advice=advice)
    return Finding(subject="ports", found="127.0.0.1 listens and connects", is_fit=True)
