import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.catalog import NetworkError, network
from trimtab.plan.layout import ALIGNMENT, TAIL, ReplicatedLayout, deciding_lines, network_of, plan_layout
from trimtab.spec import load_job

JOB = """\
run: q
model: {preset: gpt-3m}
data: {text: python-stdlib}
train: {steps: 5, batch: 24}
orchestration: {devices: 3}
fault_tolerance: {shares: 6}
"""


def loaded(text=JOB, *overrides):
    return load_job(text, source="q.yaml", overrides=overrides, read=lambda path: "")


def layout(**changes):
    values = {
        "devices": 3,
        "num_parts": 6,
        "has_fixed_order": True,
        "batch": 24,
        "microbatch": 2,
        "sequence": 128,
        "tensor_numels": (100, 16, 1),
    }
    return ReplicatedLayout(**(values | changes))


def test_a_part_is_cut_into_microbatches():
    """A user who reads how often a share runs forward and backward can trust the number."""
    assert layout().samples_per_part == 4
    assert layout().microbatches_per_part == 2
    assert layout(microbatch=3).microbatches_per_part == 2
    assert layout().tokens_per_step == 24 * 128


def test_every_tensor_starts_at_the_alignment():
    """Gaps are memory too: 100, 16 and 1 elements take 112, 16 and 16."""
    assert layout().num_parameters == 117
    assert layout().num_elements == 144
    assert layout().leaf_elements == 144 + TAIL


@given(ranks=st.integers(1, 40), numels=st.lists(st.integers(1, 5000), min_size=1, max_size=6))
def test_pieces_cover_a_leaf_and_are_aligned(ranks, numels):
    """An element that no rank sums would be a gradient that nobody applies."""
    of = layout(devices=ranks, tensor_numels=tuple(numels))
    piece = of.piece_elements(ranks)
    assert piece % ALIGNMENT == 0
    assert piece * ranks >= of.leaf_elements
    assert (piece - ALIGNMENT) * ranks < of.leaf_elements
    assert of.leaf_capacity >= piece * ranks


def test_a_layout_follows_the_job():
    """The figures are those of the job that was read, not of its defaults."""
    job = loaded().job
    planned = plan_layout(job, network("gpt-3m"))
    assert (planned.devices, planned.num_parts, planned.batch) == (3, 6, 24)
    assert planned.has_fixed_order
    assert planned.num_parameters == network("gpt-3m").num_parameters()


def test_shares_off_gives_each_device_one_part():
    """Without shares the batch is cut by devices, and no order of addition is promised."""
    planned = plan_layout(loaded(JOB, "fault_tolerance.shares=off").job, network("gpt-3m"))
    assert planned.num_parts == 3
    assert not planned.has_fixed_order


def test_a_network_takes_the_jobs_changes():
    """`model: {preset: gpt-3m, layers: 2}` is explained with two layers."""
    changed = network_of(loaded(JOB, "model.layers=2").job)
    assert changed is not None
    assert changed.layers == 2


def test_the_shapes_of_a_users_class_are_not_guessed():
    """Only torch can tell them; explain says so instead of printing zeros."""
    text = JOB.replace("preset: gpt-3m", "module: 'mine:Model'")
    assert network_of(loaded(text).job) is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.sequence=1024", "context of 512"),
        ("data.tokenizer={bpe: {vocab: 1000}}", "room for 256"),
    ],
)
def test_a_network_without_room_is_refused_before_anything_starts(override, message):
    """Else four processes would start, read the data, and fail with the same sentence."""
    with pytest.raises(NetworkError, match=message):
        network_of(loaded(JOB, override).job)


def test_the_line_that_decided_is_named():
    """A user who wonders why finds the line, or that nothing was said."""
    assert set(deciding_lines(loaded().program, loaded().layout).values()) == {"default"}
    text = JOB + "parallelism: |\n  MESH dp 3\n  SPLIT batch OVER dp\n  REDUCE grads OVER dp USING tree\n"
    job = loaded(text)
    assert deciding_lines(job.program, job.layout) == {
        "mesh": "q.yaml:8",
        "batch": "q.yaml:9",
        "grads over dp": "q.yaml:10",
    }


def test_a_later_statement_without_a_route_decides_no_route():
    """The last statement that names a route decided it, not the last that mentions the axis."""
    text = JOB + "parallelism: |\n  REDUCE grads OVER dp USING tree\n  REDUCE grads OVER dp\n"
    job = loaded(text)
    assert deciding_lines(job.program, job.layout)["grads over dp"] == "q.yaml:8"
