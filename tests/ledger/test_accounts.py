from dataclasses import replace

import pytest

from trimtab.ledger.accounts import Label, account
from trimtab.ledger.errors import AccountError, JournalError
from trimtab.terms import Clock, Layer, LedgerClass

MS = 10**6
MINUTE = 60 * 10**9


def entries(book):
    """The lines of the ledger that hold time."""
    return {entry.value: ns for entry, ns in account(book.records()).entries().items() if ns}


def test_every_stretch_of_a_device_has_its_class(book):
    """From allocation to release, nothing of a bill may be left without a name."""
    book.attempt(["d0"])
    book.say("allocated", device="d0")
    book.now += 3
    book.spawn(0)
    book.now += 5
    book.start(0, Clock.RESTART)
    book.now += 7
    for clock, ns in zip(Clock, (1, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120), strict=True):
        book.spend([0], clock, ns)
    book.exit(0)
    book.now += 11
    book.say("released", device="d0")
    assert entries(book) == {
        "queue_idle": 3,
        "restart": 5 + 7 + 90 + 11,
        "unattributed": 1,
        "compute_gap": 20,
        "comm_skew": 30,
        "input_wait": 40,
        "host_wait": 50,
        "checkpoint_stall": 60,
        "evaluation": 70,
        "detect": 80,
        "degraded": 100,
        "bubble": 110,
        "probe": 120,
    }
    assert account(book.records()).allocated_ns == 797


def test_compute_splits_by_flops_and_padding(new_book):
    """MFU and the padding leak come from these three numbers."""
    book = new_book(peak_flops_per_s=1e9)
    book.begin([0])
    book.now += 100
    book.step(0, 1, flops=60, tokens=4, targets=3)
    book.end([0])
    assert entries(book) == {"useful": 45, "padding": 15, "compute_gap": 40}


def test_useful_never_exceeds_the_measured_compute_time(new_book):
    """A peak declared too low must not make time out of nothing."""
    book = new_book(peak_flops_per_s={"d0": 1e9})
    book.begin([0])
    book.now += 100
    book.step(0, 1, flops=250, tokens=4, targets=4)
    book.end([0])
    assert entries(book) == {"useful": 100}


def test_without_a_declared_peak_nothing_is_called_useful(book):
    """Useful time that nobody can know must not be claimed."""
    book.begin([0])
    book.now += 100
    book.step(0, 1, flops=60, tokens=4, targets=4)
    book.end([0])
    assert entries(book) == {"compute_gap": 100}


def four_ranks(book, *, late_ns):
    """Two steps of four ranks with two collectives each; the loader of rank 2 is late once."""
    ranks = range(4)
    book.begin(ranks)
    for step in (1, 2):
        late = late_ns if step == 2 else 0
        others = [rank for rank in ranks if rank != 2]
        book.spend(ranks, Clock.INPUT_WAIT, 2 * MS)
        book.spend(others, Clock.COMPUTE, min(late, 30 * MS))
        book.spend(others if late else [], Clock.COMM, max(0, late - 30 * MS))
        book.spend(ranks if not late else [2], Clock.COMPUTE, 30 * MS)
        book.spend(ranks, Clock.COMM, 4 * MS)
        for rank in ranks:
            book.step(rank, step, comm=[["grads", 3 * MS + (late if rank != 2 else 0)], ["norm", MS]])
    book.end(ranks)
    return account(book.records())


def test_fifty_ms_in_one_loader_are_input_wait_there_and_skew_on_the_peers(new_book):
    """The classic straggler: the report must name the loader, not the network."""
    calm, late = (four_ranks(new_book(), late_ns=ns) for ns in (0, 50 * MS))
    for before, after in zip(calm.devices, late.devices, strict=True):
        grown = {
            key: after.amounts.get(key, 0) - before.amounts.get(key, 0)
            for key in before.amounts.keys() | after.amounts.keys()
        }
        grown_class = LedgerClass.INPUT_WAIT if after.device == "d2" else LedgerClass.COMM_SKEW
        assert {key: ns for key, ns in grown.items() if ns} == {(Label.KEPT, grown_class): 50 * MS}
    assert late.classes()[LedgerClass.COMM_TRANSFER] == 4 * 2 * 4 * MS


def test_collectives_of_other_groups_are_not_compared(book):
    """Two pipeline stages reduce different things: one stage's wait says nothing about the other's."""
    book.begin([0, 1])
    book.spend([0, 1], Clock.COMM, 100)
    book.step(0, 1, comm=[["stage0", 90], ["all", 10]])
    book.step(1, 1, comm=[["all", 4]])
    book.end([0, 1])
    assert entries(book) == {"comm_transfer": 8, "comm_skew": 192}


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_step_that_is_done_again_is_not_compared_with_its_first_time(book, is_resumed):
    """Otherwise a slow network after a rollback would look like late peers."""
    book.begin([0, 1])
    for wait_ns in (10, 70):
        book.spend([0, 1], Clock.COMM, wait_ns)
        for rank in (0, 1):
            book.step(rank, 1, comm=[["grads", wait_ns]])
        if is_resumed and wait_ns == 10:
            book.end([0, 1])
            book.begin([0, 1])
    book.end([0, 1])
    assert entries(book) == {"comm_transfer": 160}


def test_an_interrupted_collective_is_skew(book):
    """Waiting for a dead peer moves no data."""
    book.begin([0, 1])
    book.spend([0, 1], Clock.COMM, 100)
    book.step(0, 1, epoch=1, comm=[["grads", 30]])
    book.step(1, 1, epoch=1, comm=[["grads", 20]])
    book.end([0, 1])
    assert entries(book) == {"comm_transfer": 40, "comm_skew": 160}


def killed_in_step_two(book):
    """Rank 1 dies at 150, which is known at 180; the rest re-form at 200; all is over at 400."""
    book.begin([0, 1])
    book.now = 100
    for rank in (0, 1):
        book.step(rank, 1)
    book.now = 160
    book.exit(1, code=None, signal=9)
    book.now = 180
    book.fault(1, 2, fault_ns=150)
    book.now = 200


def test_a_dead_device_is_detect_then_degraded_while_others_go_on(book):
    """A card that is paid for but idle after its process died must show."""
    killed_in_step_two(book)
    book.say("formed", epoch=1, members=[0])
    book.now = 300
    book.say("released", device="d1")
    book.now = 400
    book.end([0])
    dead = next(device for device in account(book.records()).devices if device.device == "d1")
    assert {key[1].value: ns for key, ns in dead.amounts.items()} == {
        "compute_gap": 150,
        "detect": 30,
        "degraded": 120,
    }


def test_a_dead_device_that_ends_the_run_is_restart(book):
    """Nobody went on, so the time until release is teardown."""
    killed_in_step_two(book)
    book.exit(0, code=1)
    book.now = 250
    book.say("released", device="d0")
    book.say("released", device="d1")
    assert entries(book) == {"compute_gap": 200 + 150, "detect": 30, "restart": 50 + 70}


def test_a_replacement_ends_the_degraded_time(book):
    """The replaced card works again; its start is restart time."""
    killed_in_step_two(book)
    book.say("formed", epoch=1, members=[0])
    book.now = 300
    book.spawn(1)
    book.now = 340
    book.start(1, Clock.COMPUTE)
    book.now = 400
    book.end([0, 1])
    assert entries(book) == {"compute_gap": 400 + 150 + 60, "detect": 30, "degraded": 120, "restart": 40}


def test_the_clock_of_a_process_proves_that_it_lived_longer_than_its_heartbeat(book):
    """The last sign of life may be older than the last switch; the switch happened."""
    book.begin([0])
    book.now = 100
    book.switch(0, Clock.COMM)
    book.now = 180
    book.fault(0, 1, fault_ns=60)
    book.now = 190
    book.exit(0, code=None, signal=9)
    book.say("released", device="d0")
    assert entries(book) == {"compute_gap": 100, "detect": 80, "restart": 10}


def test_a_fault_that_is_declared_after_the_release_costs_no_more_than_was_paid(book):
    """Whoever declares may be slower than whoever gives the card back."""
    book.begin([0])
    book.now = 100
    book.exit(0, code=None, signal=9)
    book.now = 120
    book.say("released", device="d0")
    book.now = 500
    book.fault(0, 1, fault_ns=90)
    assert entries(book) == {"compute_gap": 90, "detect": 30}


def test_the_first_declaration_of_a_fault_counts(book):
    """Watchdog and exit code may both declare the same death."""
    book.begin([0])
    book.now = 150
    book.exit(0, code=None, signal=9)
    book.fault(0, 1, fault_ns=100)
    book.now = 180
    book.fault(0, 1, fault_ns=140)
    book.now = 200
    book.say("released", device="d0")
    assert entries(book) == {"compute_gap": 100, "detect": 50, "restart": 50}


def test_a_device_may_leave_and_come_back(book):
    """Elastic runs give cards back and get them again; only what was held is paid for."""
    book.begin([0, 1])
    book.now = 100
    book.exit(1)
    book.say("released", device="d1")
    book.now = 300
    book.say("allocated", device="d1")
    book.spawn(1)
    book.start(1, Clock.COMPUTE)
    book.now = 400
    book.end([0, 1])
    assert entries(book) == {"compute_gap": 400 + 100 + 100}


def test_a_journal_that_is_ahead_of_its_clock_file_claims_no_more_than_the_clocks(book):
    """After a crash of the machine the mapped file may be older than the journal."""
    book.begin([0])
    book.now = 100
    book.step(0, 1)
    book.tell(0, "step", step=2, epoch=0, start_ns=100, end_ns=180, clocks={"compute": 80, "comm": 5})
    book.now = 130
    book.end([0])
    assert entries(book) == {"compute_gap": 130}


def test_a_process_that_died_before_its_clocks_started_is_restart(book):
    """An import that crashes costs money too."""
    book.attempt(["d0"])
    book.say("allocated", device="d0")
    book.spawn(0)
    book.now = 70
    book.exit(0, code=1)
    book.say("released", device="d0")
    assert entries(book) == {"restart": 70}


def test_a_device_without_work_waits_for_the_others(book):
    """A card given back late by a shrunk run is idle, not restarting."""
    book.begin([0, 1])
    book.now = 100
    book.exit(1)
    book.now = 160
    book.exit(0)
    book.now = 165
    book.say("released", device="d0")
    book.say("released", device="d1")
    assert entries(book) == {"compute_gap": 260, "queue_idle": 60, "restart": 10}


def test_a_crashed_agent_ends_at_its_last_event_or_at_the_last_switch(book):
    """Cards of a crashed agent must neither cost for ever nor cost nothing."""
    book.begin([0, 1])
    book.now = 100
    book.say("hello", rank=0, incarnation=0)
    book.now = 130
    book.switch(1, Clock.COMM)
    book.now = 10**15
    assert entries(book) == {"compute_gap": 100 + 130}


def test_a_device_that_never_got_a_process_is_idle(book):
    """Cards that are held for nothing are the scheduler's leak."""
    book.attempt(["d0"])
    book.say("allocated", device="d0")
    book.now = 90
    book.say("released", device="d0")
    assert entries(book) == {"queue_idle": 90}


def test_what_never_started_costs_nothing(new_book):
    """A request that failed for lack of capacity must not stand in the report with dollars."""
    book = new_book(price_usd_per_hour=8.8)
    book.attempt([f"d{n}" for n in range(100)])
    book.now = 3600 * 10**9
    book.say("finished", state="failed")
    result = account(book.records())
    assert (result.allocated_ns, result.unattributed_fraction) == (0, 0.0)


def test_what_never_started_costs_zero_dollars_and_not_an_unknown_sum(new_book):
    """Nobody knows what a card costs that was never had, and it does not matter."""
    for price in (8.8, None):
        book = new_book(price_usd_per_hour=price)
        book.attempt(["d0"])
        book.now = 3600 * 10**9
        book.say("finished", state="failed")
        assert account(book.records()).cost_usd == 0.0


def test_devices_cost_from_the_moment_that_they_are_there(new_book):
    """An hour in a queue and a host that never came are not on the bill."""
    book = new_book(price_usd_per_hour=6.0)
    book.attempt(["d0", "d1"])
    book.now = 60 * MINUTE
    book.say("allocated", device="d0")
    book.now += 10 * MINUTE
    book.say("released", device="d0")
    book.now += 60 * MINUTE
    book.say("finished", state="failed")
    assert account(book.records()).cost_usd == pytest.approx(1.0)


def test_stopped_devices_stop_costing(new_book):
    """The bill is the sum of closed intervals, whatever the clock says later."""
    book = new_book(price_usd_per_hour=6.0)
    book.begin([0])
    book.now = 10 * MINUTE
    book.end([0])
    assert account(book.records()).cost_usd == pytest.approx(1.0, abs=1e-12)
    book.now += 600 * MINUTE
    assert account(book.records()).cost_usd == pytest.approx(1.0, abs=1e-12)


def four_attempts(book, *, overlap_ns=0):
    """64, 74, 101 and 35 minutes; a step a minute, a checkpoint every 30; three crashes in mid-step."""
    step = 0
    for minutes in (64, 74, 101, 35):
        book.begin([0])
        if step:
            step -= step % 30
            book.say("rollback", to_step=step)
        for _ in range(minutes - 1):
            book.now += MINUTE
            step += 1
            book.step(0, step)
        book.now += MINUTE
        if minutes == 35:
            book.end([0])
            return
        book.exit(0, code=None, signal=9)
        book.now += overlap_ns
        book.say("released", device="d0")
        book.now += 500 * MINUTE - overlap_ns


def test_all_attempts_count_and_lost_minutes_stand_apart(book):
    """A restarted run costs what all its attempts cost, and shows what the crashes threw away."""
    four_attempts(book)
    result = account(book.records())
    assert result.allocated_ns == 274 * MINUTE
    lost = [device.entry_ns(Label.LOST_WORK) // MINUTE for device in result.devices]
    assert lost == [64 - 60, (60 + 73) % 30 + 1, (120 + 100) % 30 + 1, 0]
    assert result.layers()[Layer.STABILITY] == sum(lost) * MINUTE


def crash_after(book, minutes, *, first_step=1, saved=()):
    """An attempt of so many minutes that is killed in the middle of its last; it commits a step a minute."""
    book.begin([0])
    for step in range(first_step, first_step + minutes - 1):
        book.now += MINUTE
        book.step(0, step)
        book.tell(0, "commit", step=step, loss=1.0)
        if step in saved:
            book.tell(0, "checkpoint", step=step, state="saved", bytes=8, unix_ns=1)
    book.now += MINUTE
    book.exit(0, code=None, signal=9)


def lost_minutes(records):
    result = account(records)
    assert sum(result.entries().values()) == result.allocated_ns
    return [device.entry_ns(Label.LOST_WORK) / MINUTE for device in result.devices]


@pytest.mark.parametrize(("saved", "lost"), [((30, 60), 4), ((30,), 34), ((), 64)])
def test_a_run_that_failed_has_lost_what_no_checkpoint_holds(book, saved, lost):
    """The report after a crash and the one after the resume must say the same, so nobody learns of it too late."""
    crash_after(book, 64, saved=saved)
    book.say("finished", state="failed", error="killed")
    book.say("released", device="d0")
    assert lost_minutes(book.records()) == [lost]
    book.now += 500 * MINUTE
    first_step = max(saved, default=0) + 1
    crash_after(book, 2, first_step=first_step)
    book.say("finished", state="failed", error="killed")
    book.say("released", device="d0")
    assert lost_minutes(book.records()) == [lost, 2]


def test_a_run_that_was_cut_off_has_lost_it_too_but_not_while_it_runs(book):
    """A machine that goes down writes no end; a live run has lost nothing yet."""
    crash_after(book, 64, saved=(60,))
    records = book.records()
    assert lost_minutes(records) == [0]
    assert lost_minutes(replace(records, has_ended=True)) == [4]


def test_a_resume_that_fails_at_once_takes_nothing_back(book):
    """Its attempt commits nothing, so what the first one lost is still known by its checkpoints alone."""
    crash_after(book, 64, saved=(60,))
    book.say("released", device="d0")
    book.begin([0])
    book.exit(0, code=1)
    book.end([0], state="failed")
    assert lost_minutes(book.records()) == [4, 0]


def test_a_checkpoint_that_is_gone_saves_nothing(book):
    """One that was pruned, or set aside by a rollback, is not what the next attempt begins with."""
    crash_after(book, 64, saved=(30, 45, 60))
    book.tell(0, "pruned", step=60, unix_ns=2)
    assert lost_minutes(replace(book.records(), has_ended=True)) == [64 - 45]
    book.say("rollback", to_step=40)
    assert lost_minutes(replace(book.records(), has_ended=True)) == [64 - 30]


def test_a_run_that_ended_well_has_lost_nothing(book):
    """Its last steps are in its weights, saved or not."""
    crash_after(book, 64, saved=(60,))
    book.say("finished", state="done")
    book.say("released", device="d0")
    assert lost_minutes(replace(book.records(), has_ended=True)) == [0]


def test_overlapping_attempts_count_once(book):
    """A release that is logged late must not charge the device twice."""
    book.begin([0])
    book.now = 100
    book.exit(0)
    book.now = 150
    book.begin([0])
    book.now = 170
    book.say("released", attempt=0, device="d0")
    book.now = 200
    book.end([0])
    assert account(book.records()).allocated_ns == 200


def test_after_a_reboot_times_are_not_compared(book):
    """Monotonic clocks begin anew at boot: the second attempt must not cut the first."""
    book.begin([0], boot="a")
    book.now = 100
    book.end([0])
    book.now = 30
    book.begin([0], boot="b")
    book.now = 90
    book.end([0])
    assert account(book.records()).allocated_ns == 160


def test_an_orphan_gives_its_device_up_to_the_next_attempt(book):
    """Ranks that outlive their agent for a moment must neither break the account nor count twice."""
    book.begin([0])
    orphan = book.clocks[0]
    book.now = 100
    book.begin([0])
    orphan.switch(Clock.COMM, 120)
    orphan.switch(Clock.COMPUTE, 150)
    book.now = 200
    book.end([0])
    result = account(book.records())
    assert [device.allocated_ns for device in result.devices] == [100, 100]


def test_an_orphan_that_starts_its_clocks_after_the_takeover_claims_nothing(book):
    """A slow import outlives its agent: its device is another's by then."""
    book.attempt(["d0"])
    book.say("allocated", device="d0")
    book.spawn(0)
    book.now = 60
    book.attempt(["d0"])
    book.say("allocated", device="d0")
    book.now = 80
    book.start(0, Clock.COMPUTE)
    book.now = 100
    book.say("released", device="d0")
    assert entries(book) == {"restart": 60, "queue_idle": 40}


def test_rolled_back_steps_move_and_nothing_is_created(book):
    """Lost work is a second key: the seconds stay what they were and the sum stays what it was."""

    def run(book, *, rolls_back):
        book.begin([0, 1])
        for step in (1, 2, 3):
            book.spend([0, 1], Clock.COMPUTE, 70)
            book.spend([0, 1], Clock.CHECKPOINT_STALL, 30)
            for rank in (0, 1):
                book.step(rank, step)
        if rolls_back:
            book.say("rollback", to_step=1)
        book.now += 1
        for rank in (0, 1):
            book.step(rank, 2)
        book.end([0, 1])
        return account(book.records())

    calm, rolled = run(type(book)(), rolls_back=False), run(book, rolls_back=True)
    assert rolled.classes() == calm.classes()
    assert rolled.entries()[Label.LOST_WORK] == 2 * 2 * 70
    assert rolled.classes(Label.LOST_WORK)[LedgerClass.COMPUTE_GAP] == 2 * 2 * 70
    assert sum(rolled.entries().values()) == sum(calm.entries().values()) == rolled.allocated_ns


def give_up(book, *, shares):
    """Both ranks give step 1 up after 50 ns of compute and 10 of evaluation."""
    book.begin([0, 1])
    book.spend([0, 1], Clock.EVALUATION, 10)
    book.spend([0, 1], Clock.COMPUTE, 50)
    for rank in (0, 1):
        book.step(rank, 1, kind="aborted", shares=shares[rank])
    book.now += 30


def test_an_attempt_whose_shares_are_computed_again_is_lost_work(book):
    """Under `redo`, whoever owns the shares afterwards: the first time was for nothing."""
    give_up(book, shares=[[0], [1]])
    book.step(0, 1, shares=[0, 1])
    book.end([0, 1])
    assert entries(book) == {"lost_work": 100, "evaluation": 20, "compute_gap": 60}


def test_an_attempt_whose_shares_are_kept_is_not_lost(book):
    """Under `exact` the survivors' gradients count: nothing was computed twice."""
    give_up(book, shares=[[0], [1]])
    book.step(0, 1, shares=[1], reused=[0], recovered=[1])
    book.end([0, 1])
    assert entries(book) == {"lost_work": 50, "evaluation": 20, "compute_gap": 50 + 60}


def test_half_of_the_shares_computed_again_is_half_of_the_attempt(book):
    """Parts are by shares, and the odd nanosecond stays where it was."""
    give_up(book, shares=[[0, 2, 4], []])
    book.step(0, 1, shares=[4], reused=[0, 2])
    book.end([0, 1])
    assert entries(book) == {"lost_work": 50 // 3 + 50, "evaluation": 20, "compute_gap": 50 - 50 // 3 + 60}


def test_an_attempt_at_a_step_that_another_rank_had_committed_is_not_lost(book):
    """Who gives up after its peer has committed takes the peer's state: its gradients are in it."""
    give_up(book, shares=[[0], [1]])
    book.step(0, 2, shares=[0])
    book.end([0, 1])
    assert entries(book) == {"evaluation": 20, "compute_gap": 160}


def test_shares_of_a_lost_peer_make_no_useful_time_out_of_other_compute(new_book):
    """Their time is degraded; their FLOPs must not hide the gap in the rest."""
    book = new_book(peak_flops_per_s=1e9)
    book.begin([0])
    book.spend([0], Clock.COMPUTE, 100)
    book.spend([0], Clock.DEGRADED, 40)
    book.step(0, 1, shares=[0, 1], recovered=[1], flops=60, tokens=8, targets=8)
    book.end([0])
    assert entries(book) == {"useful": 30, "compute_gap": 70, "degraded": 40}


def test_a_crash_and_a_resume_from_a_checkpoint_are_a_rollback(book):
    """Nobody says so, but the first commit of the new attempt tells where it began."""
    book.begin([0])
    for step in (1, 2, 3):
        book.now += 100
        book.step(0, step)
        book.tell(0, "commit", step=step, loss=1.0)
    book.now += 70
    book.exit(0, code=0, signal=9)
    book.say("released", device="d0")
    book.begin([0])
    book.now += 100
    book.step(0, 2)
    book.tell(0, "commit", step=2, loss=1.0)
    book.end([0])
    assert entries(book) == {"lost_work": 100 + 100 + 70, "compute_gap": 200}


def test_a_clean_stop_at_a_checkpoint_loses_nothing(book):
    """Stop and resume is not a failure."""
    book.begin([0])
    book.now = 100
    book.step(0, 7)
    book.now = 120
    book.end([0], state="stopped")
    book.begin([0])
    book.say("rollback", to_step=7)
    book.now = 200
    book.end([0])
    assert Label.LOST_WORK not in entries(book)


def test_dollars_use_each_device_and_each_attempts_own_price(new_book):
    """Old and new cards, and a spot price that changed, add up without averaging."""
    hour = 60 * MINUTE
    book = new_book()
    book.begin([0, 1], price_usd_per_hour={"d0": 2.0, "d1": 8.0})
    book.now = hour
    book.end([0, 1])
    book.begin([0], price_usd_per_hour=3.0)
    book.now = 2 * hour
    book.end([0])
    result = account(book.records())
    assert result.cost_usd == pytest.approx(13.0)
    assert result.dollars()[LedgerClass.COMPUTE_GAP] == pytest.approx(13.0)


def test_one_device_without_a_price_leaves_the_cost_unknown(book):
    """Half a bill would look like a whole one."""
    book.begin([0, 1], price_usd_per_hour={"d0": 2.0})
    book.now = 100
    book.end([0, 1])
    assert account(book.records()).cost_usd is None


@pytest.mark.parametrize(
    ("clock_ns", "message"),
    [
        (150, "device 'd0'.*switched its clock at 150 ns.*reaped at 100 ns"),
        (-5, "device 'd0'.*before its device was allocated"),
    ],
)
def test_a_clock_outside_its_devices_time_names_the_device(book, clock_ns, message):
    """Ranks and agent on different clocks would give a ledger of nonsense."""
    book.attempt(["d0"])
    book.say("allocated", device="d0")
    book.spawn(0)
    book.now = clock_ns
    book.start(0, Clock.COMPUTE)
    book.now = 100
    book.end([0])
    with pytest.raises(AccountError, match=message):
        account(book.records())


@pytest.mark.parametrize("clocks", [None, {"compute": -1}, {"lunch": 5}, 7])
def test_a_step_with_senseless_clocks_is_named(book, clocks):
    """A writer's bug must be found at the event, not in the sum."""
    book.begin([0])
    book.tell(0, "step", step=1, epoch=0, start_ns=0, end_ns=1, clocks=clocks)
    with pytest.raises(JournalError, match="'step' at t_ns 0: clocks"):
        account(book.records())
