import signal
import struct
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.ledger.clocks import CLOCK_FILE_BYTES, ClockFile, read_clocks
from trimtab.ledger.errors import ClockFileError
from trimtab.terms import Clock

switches = st.lists(st.tuples(st.sampled_from(Clock), st.integers(0, 10**12)), max_size=20)


class _KilledWriter:
    """A buffer of int64 whose process dies after a given number of writes."""

    def __init__(self, words, writes):
        self._words = words
        self._writes = writes

    def __getitem__(self, index):
        return self._words[index]

    def __setitem__(self, index, value):
        if self._writes == 0:
            raise KeyboardInterrupt
        self._writes -= 1
        self._words[index] = value


def test_time_goes_to_the_clock_that_runs():
    """The simplest run: each interval stands on the clock that was on."""
    buffer = bytearray(CLOCK_FILE_BYTES)
    clocks = ClockFile(buffer, clock=Clock.RESTART, now_ns=100)
    assert clocks.switch(Clock.COMPUTE, 130) is Clock.RESTART
    assert clocks.switch(Clock.COMM, 200) is Clock.COMPUTE
    reading = read_clocks(buffer)
    assert (reading.first_ns, reading.last_ns, reading.running) == (100, 200, Clock.COMM)
    totals = reading.totals(until_ns=250)
    assert {clock: ns for clock, ns in totals.items() if ns} == {
        Clock.RESTART: 30,
        Clock.COMPUTE: 70,
        Clock.COMM: 50,
    }


def test_the_layout_is_the_documented_one():
    """Files of older runs, and readers in other languages, depend on it."""
    buffer = bytearray(CLOCK_FILE_BYTES)
    clocks = ClockFile(buffer, clock=Clock.COMPUTE, now_ns=100)
    clocks.switch(Clock.HOST_WAIT, 130)
    assert buffer[:8] == b"trimtabC"
    assert struct.unpack_from("<4q", buffer, 8) == (1, 100, 4, 130)
    assert struct.unpack_from("<12q", buffer, 40) == (0, 30, *[0] * 10)
    assert len(buffer) == 136


def test_a_file_of_an_earlier_release_is_read():
    """It had ten clocks; the later ones did not run."""
    buffer = bytearray(CLOCK_FILE_BYTES)
    clocks = ClockFile(buffer, clock=Clock.COMPUTE, now_ns=100)
    clocks.switch(Clock.DEGRADED, 130)
    totals = read_clocks(buffer[:120]).totals(until_ns=140)
    assert totals == {clock: {Clock.COMPUTE: 30, Clock.DEGRADED: 10}.get(clock, 0) for clock in Clock}
    with pytest.raises(ClockFileError, match="119 bytes"):
        read_clocks(buffer[:119])


@given(switches, st.integers(0, 10**12))
def test_totals_add_up_to_the_whole_time(steps, tail):
    """Whatever a process did, no nanosecond between its start and its end is missing or counted twice."""
    buffer = bytearray(CLOCK_FILE_BYTES)
    now = 7
    clocks = ClockFile(buffer, clock=Clock.UNATTRIBUTED, now_ns=now)
    for clock, ns in steps:
        now += ns
        clocks.switch(clock, now)
    assert sum(read_clocks(buffer).totals(until_ns=now + tail).values()) == now + tail - 7


@given(st.integers(0, 6))
def test_a_kill_between_two_writes_loses_and_doubles_nothing(writes):
    """`kill -9` inside a switch must not break the ledger's identity."""
    buffer = bytearray(CLOCK_FILE_BYTES)
    clocks = ClockFile(buffer, clock=Clock.COMPUTE, now_ns=0)
    clocks._words = _KilledWriter(clocks._words, writes)
    with suppress(KeyboardInterrupt):
        clocks.switch(Clock.COMM, 1_000)
        clocks.switch(Clock.INPUT_WAIT, 1_500)
    totals = read_clocks(buffer).totals(until_ns=1_500)
    assert sum(totals.values()) == 1_500
    assert totals[Clock.COMPUTE] + totals[Clock.COMM] == 1_500
    if writes >= 3:
        assert totals[Clock.COMPUTE] == 1_000


def test_laps_hold_the_time_since_the_lap_before():
    """Step events carry these: together with the last, open one they are the whole file."""
    clocks = ClockFile(bytearray(CLOCK_FILE_BYTES), clock=Clock.RESTART, now_ns=0)
    clocks.switch(Clock.COMPUTE, 10)
    assert clocks.lap(25) == {"restart": 10, "compute": 15}
    clocks.switch(Clock.COMM, 30)
    assert clocks.lap(32) == {"compute": 5, "comm": 2}
    assert clocks.lap(32) == {}


def test_clocks_that_never_started_read_as_none():
    """A process that dies while it starts leaves a file of zeros."""
    assert read_clocks(bytes(CLOCK_FILE_BYTES)) is None


@pytest.mark.parametrize("data", [b"", b"x" * CLOCK_FILE_BYTES, b"x" * (CLOCK_FILE_BYTES - 1)])
def test_what_is_no_clock_file_is_refused(data):
    """Numbers out of a foreign file would look like a ledger."""
    with pytest.raises(ClockFileError):
        read_clocks(data)


def test_a_released_buffer_can_be_resized():
    """The process must be able to unmap its file when it ends cleanly."""
    buffer = bytearray(CLOCK_FILE_BYTES)
    clocks = ClockFile(buffer, clock=Clock.RESTART, now_ns=0)
    clocks.release()
    buffer.clear()


@pytest.mark.process
def test_a_killed_process_leaves_its_clocks(tmp_path):
    """The promise itself: `kill -9` in mid-interval, and the file tells where the time went."""
    path = tmp_path / "rank-0-0.clock"
    path.write_bytes(bytes(CLOCK_FILE_BYTES))
    script = """
import mmap, os, signal, sys
from trimtab.ledger import ClockFile
from trimtab.terms import Clock
with open(sys.argv[1], "r+b") as file:
    clocks = ClockFile(mmap.mmap(file.fileno(), 0), clock=Clock.RESTART, now_ns=100)
clocks.switch(Clock.COMPUTE, 150)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script, path], check=False)
    assert killed.returncode == -signal.SIGKILL
    totals = read_clocks(path.read_bytes()).totals(until_ns=180)
    assert (totals[Clock.RESTART], totals[Clock.COMPUTE]) == (50, 30)
