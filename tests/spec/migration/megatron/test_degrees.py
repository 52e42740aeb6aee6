"""The mesh of an imported job against Megatron-LM's own numbering of ranks, written down here a second time."""

import itertools
import math

import pytest

from tests.spec.migration.conftest import fates, loaded
from trimtab.spec.migration import Fate, MigrationError

FAST_FIRST = ("tp", "cp", "dp", "pp")
STAGES_INSIDE = ("tp", "cp", "pp", "dp")
"""Megatron's orders, fastest axis first; with the second its user asks for tp-pp-dp."""


def groups(sizes, order, axes):
    """The groups of ranks that differ along some axes only: the rule of Megatron's documentation, by counting."""
    strides, stride = {}, 1
    for axis in order:
        strides[axis] = stride
        stride *= sizes[axis]

    def place(rank):
        return tuple(rank // strides[axis] % sizes[axis] for axis in order if axis not in axes)

    ranks = sorted(range(stride), key=place)
    return {frozenset(group) for _, group in itertools.groupby(ranks, key=place)}


def mesh_of(migration):
    """Sizes and order of the mesh that our own loader reads, fastest axis first."""
    axes = loaded(migration).layout.mesh.axes
    return dict(axes), tuple(axis for axis, _ in reversed(axes))


@pytest.mark.parametrize("order", [FAST_FIRST, STAGES_INSIDE], ids=["default", "tp-pp-dp"])
@pytest.mark.parametrize(
    "sizes", [(2, 1, 4, 2), (2, 2, 2, 2), (4, 1, 1, 4), (1, 2, 3, 2), (8, 1, 16, 1), (1, 1, 8, 1)]
)
def test_groups_are_the_same_ranks(migrate, sizes, order):
    """A group of other ranks is another cable: tensor parallelism between machines runs at a tenth of the speed."""
    tp, cp, _, pp = sizes
    flags = (
        f"--tensor-model-parallel-size {tp} --context-parallel-size {cp} --pipeline-model-parallel-size {pp}"
    )
    if order == STAGES_INSIDE:
        flags += " --use-tp-pp-dp-mapping"
    migration = migrate(f"{flags} --global-batch-size 96", devices=math.prod(sizes))
    theirs, (ours, our_order) = dict(zip(FAST_FIRST, sizes, strict=True)), mesh_of(migration)
    assert {axis: size for axis, size in theirs.items() if size > 1 or axis == "dp"} == ours
    for axis in ours:
        assert groups(ours, our_order, {axis}) == groups(theirs, order, {axis})


@pytest.mark.parametrize(("tp", "ep", "dp"), [(2, 4, 8), (1, 8, 8), (4, 2, 2)])
def test_experts_of_one_group_are_the_same_ranks(migrate, tp, ep, dp):
    """Experts exchange tokens with all their group: Megatron counts its ranks next to the tensor axis."""
    flags = f"--tensor-model-parallel-size {tp} --expert-model-parallel-size {ep} --num-experts 8 --sequence-parallel"
    migration = migrate(
        f"{flags} --pipeline-model-parallel-size 2 --global-batch-size 64", devices=tp * dp * 2
    )
    ours, order = mesh_of(migration)
    theirs = {"tp": tp, "ep": ep, "dp": dp // ep, "pp": 2}
    assert groups(ours, order, {"ep"}) == groups(theirs, ("tp", "ep", "dp", "pp"), {"ep"})


def test_experts_over_the_context_axis(migrate):
    """With as many parts of experts as of a sequence, Megatron counts both over the same ranks."""
    flags = "--context-parallel-size 2 --expert-model-parallel-size 2 --num-experts 8 --tensor-model-parallel-size 2"
    migration = migrate(flags, devices=8)
    assert "SPLIT experts OVER cp" in migration.formulas
    assert mesh_of(migration) == ({"dp": 2, "cp": 2, "tp": 2}, ("tp", "cp", "dp"))
    assert fates(migration)["--expert-model-parallel-size"].fate is Fate.CARRIED


def test_experts_beside_another_context_axis_are_told(migrate):
    """A group that is made of other ranks must not pass for the same one."""
    migration = migrate("--context-parallel-size 2 --expert-model-parallel-size 4 --num-experts 8", devices=8)
    setting = fates(migration)["--expert-model-parallel-size"]
    assert setting.fate is Fate.CHANGED
    assert "other devices" in setting.reason


def test_experts_with_a_tensor_degree_of_their_own(migrate):
    """Fewer ways, whole matrices divided: a device holds as many bytes of experts as before."""
    flags = "--tensor-model-parallel-size 2 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1"
    migration = migrate(f"{flags} --num-experts 8 --sequence-parallel", devices=8)
    assert "MESH dp *, ep 4, tp 2" in migration.formulas
    found = fates(migration)
    assert found["--expert-tensor-parallel-size"].fate is Fate.IMPOSSIBLE
    assert found["--expert-model-parallel-size"].fate is Fate.CHANGED
    assert migrate(flags.replace("size 1", "size 2"), devices=16).formulas.startswith("MESH dp *, ep 8, tp 2")


def test_copies_of_the_optimizer_are_the_outermost_data_axis(migrate):
    """The divided optimizer lies on neighbours, and its copies on machines apart."""
    flags = (
        "--use-distributed-optimizer --num-distributed-optimizer-instances 2 --tensor-model-parallel-size 2"
    )
    migration = migrate(f"{flags} --global-batch-size 64", devices=16)
    assert migration.formulas.startswith("MESH replica 2, dp *, tp 2\nSPLIT batch OVER replica, dp\n")
    assert "STORE states OVER dp\n" in migration.formulas


@pytest.mark.parametrize(
    ("launcher", "devices", "engine"),
    [
        ("torchrun --nnodes 4 --nproc-per-node 8", 32, "torchrun"),
        ("torchrun --nnodes=1 --nproc_per_node=8", 8, "local"),
        ("python -m torch.distributed.run --nproc_per_node 4 --nnodes 2", 8, "torchrun"),
        ("deepspeed --num_nodes 2 --num_gpus 8", 16, "torchrun"),
        ("python", 2, "torchrun"),
    ],
)
def test_devices_of_the_launcher(migrate, launcher, devices, engine):
    """A job for another number of devices than its machines have does not start."""
    shape = "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 32 --tensor-model-parallel-size 2"
    job = migrate(text=f"{launcher} pretrain_gpt.py {shape}\n").job["orchestration"]
    assert (job["devices"], job["engine"]) == (devices, engine)


def test_devices_that_slurm_gives(migrate):
    """Most launches of hundreds of devices say so to Slurm only."""
    text = "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2\n"
    migration = migrate(text=text)
    assert migration.job["orchestration"]["devices"] == 32
    assert fates(migration)["#SBATCH --nodes"].fate is Fate.CARRIED


@pytest.mark.parametrize(
    ("flags", "devices", "reason"),
    [
        (
            "--nnodes 2 --nproc-per-node 8 --tensor-model-parallel-size 3",
            None,
            "16 devices do not hold the degrees",
        ),
        ("--nnodes 2 --tensor-model-parallel-size 2", None, "not both known; the devices are the fewest"),
        (
            "--nnodes 2 --tensor-model-parallel-size 2",
            16,
            "not both known; the devices are those that were given",
        ),
    ],
)
def test_devices_that_are_not_the_launchers(migrate, flags, devices, reason):
    """Someone who asked for 16 devices and gets 18 must read why."""
    migration = migrate(flags, devices=devices)
    setting = fates(migration)["--nnodes"]
    assert setting.fate is Fate.CHANGED
    assert reason in setting.reason


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--tensor-model-parallel-size 0",
            "--tensor-model-parallel-size is '0'; it takes a whole number of at least 1",
        ),
        ("--tensor-model-parallel-size two", "--tensor-model-parallel-size is 'two'; it takes a number"),
        ("--context-parallel-size 1.5", "--context-parallel-size is '1.5'; it takes a whole number"),
        ("--tensor-model-parallel-size 100000 --context-parallel-size 100000", "one of them is mistyped"),
        ("--pipeline-model-parallel-size 16", "8 layers do not fill 16 stages"),
    ],
)
def test_degrees_that_are_none(migrate, flags, message):
    """A typing error must not become a mesh."""
    with pytest.raises(MigrationError, match=message):
        migrate(flags)
