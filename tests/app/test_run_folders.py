import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from trimtab.app.errors import RunStateError, UnknownRunError
from trimtab.app.run_folders import (
    at_work,
    create_run,
    find_run,
    is_alive,
    lock_owner,
    next_attempt,
    next_incarnation,
    next_run,
)

HOLD = """
import sys, pathlib, time
from trimtab.app.run_folders import at_work
with at_work(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_runs_are_numbered_and_never_shared(tmp_path):
    """Two users who start the same job at once must not write into one folder."""
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: create_run(tmp_path, "quick"), range(40)))
    assert sorted(int(folder.name.removeprefix("quick-")) for folder in folders) == list(range(1, 41))


def test_a_number_is_counted_for_its_name_alone(tmp_path):
    """`quick-2-5` is a run of the job quick-2, not the fifth of quick."""
    for name in ("quick-9", "quick-10", "quick-2-50", "quicker-99"):
        (tmp_path / name).mkdir()
    assert next_run(tmp_path, "quick").name == "quick-11"
    assert next_run(tmp_path / "nowhere", "quick").name == "quick-1"


def test_a_folder_that_cannot_be_made_is_an_error_of_the_input(tmp_path):
    """`orchestration.runs` named a file: the message says so, without a traceback."""
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunStateError, match="runs"):
        create_run(tmp_path / "runs", "quick")


def test_a_run_is_found_by_directory_name_and_beginning(written_run, desk):
    """What a user types after TAB, from memory, or as a path."""
    written_run("quick-1")
    written_run("other-1")
    assert find_run("quick-1").name == "quick-1"
    assert find_run("oth").name == "other-1"
    assert find_run(str(desk / "runs" / "quick-1")).name == "quick-1"
    assert find_run("./runs/quick-1").name == "quick-1"


def test_a_name_that_fits_several_is_refused_with_the_list(written_run):
    """Reporting or stopping some run that the user did not mean would be worse than asking."""
    for number in (1, 2, 10):
        written_run(f"quick-{number}")
    with pytest.raises(UnknownRunError) as refusal:
        find_run("quick")
    assert [line.strip() for line in str(refusal.value).splitlines()[1:4]] == [
        "quick-1",
        "quick-2",
        "quick-10",
    ]
    assert find_run("quick-1").name == "quick-1"  # in full it fits one, though it begins another


def test_an_unknown_name_gets_the_nearest(written_run):
    """A typing error costs a second, not a search."""
    written_run("quick-1")
    with pytest.raises(UnknownRunError, match=r"Did you mean 'quick-1'\?"):
        find_run("quikc-1")


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "../secret",
        "..%2fsecret",
        "%2e%2e",
        "~",
        "",
        "a/../../secret",
        "file:secret",
        "secret?x",
        "secret#x",
    ],
)
def test_a_name_never_leads_out_of_the_folder_of_runs(written_run, desk, name):
    """Names come from scripts and other people too: what is no run is refused, whatever it spells."""
    written_run("quick-1")
    (desk / "secret").mkdir()
    with pytest.raises(UnknownRunError):
        find_run(name)


def test_one_process_at_a_time_is_at_work(written_run):
    """Two agents in one folder would save over each other."""
    folder = written_run().folder
    assert not is_alive(folder)
    with at_work(folder):
        assert is_alive(folder)
        assert lock_owner(folder) == os.getpid()
        with pytest.raises(RunStateError, match=f"process {os.getpid()}"), at_work(folder):
            pass
    assert not is_alive(folder)


@pytest.mark.process
def test_a_killed_process_does_not_leave_the_run_alive(written_run):
    """After `kill -9` or a crash `resume` must work at once, without a stale lock to remove by hand."""
    folder = written_run().folder
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "held\n"
        assert is_alive(folder)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert not is_alive(folder)


def test_numbers_go_on_where_earlier_attempts_ended(written_run):
    """A resumed run that reused a number would overwrite the clocks of the attempt before."""
    run = written_run()
    assert (next_attempt(run.folder), next_incarnation(run.folder)) == (1, 0)
    run.attempt(1, range(2)).attempt(2, range(2, 3))
    assert (next_attempt(run.folder), next_incarnation(run.folder)) == (3, 2)
    (run.folder / "logs").mkdir(exist_ok=True)
    (run.folder / "logs" / "rank-0-2.log").touch()
    assert next_incarnation(run.folder) == 3, "it was started, and ended before it could open its journal"
