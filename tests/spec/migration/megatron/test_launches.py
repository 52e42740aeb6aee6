"""Which command of a text is the training."""

import pytest

from tests.spec.migration.conftest import fates
from trimtab.spec.migration import MigrationError
from trimtab.spec.migration.megatron.launches import read_launch

SHAPE = "--num-layers 2 --hidden-size 64 --num-attention-heads 2"


def flags(text):
    """The flags of the launch in a text, as words."""
    return {flag.name: flag.text for flag in read_launch(text).flags}


@pytest.mark.parametrize(
    "text",
    [
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE}",
        f"python -m torch.distributed.launch --nproc_per_node 8 /a/b/pretrain_gpt.py {SHAPE}",
        f"deepspeed pretrain_gpt.py {SHAPE}",
        f"A='{SHAPE}'\nsrun -l bash -c \"python -u pretrain_gpt.py $A\"",
        f'A=\'{SHAPE}\'\nCMD="pretrain_gpt.py $A"\neval "torchrun $CMD"',
        f'A=({SHAPE})\npython pretrain_gpt.py "${{A[@]}}" > log 2>&1',
        'A=(\n  "--num-layers 2"\n  "--hidden-size 64" --num-attention-heads=2\n)\ntorchrun pretrain_gpt.py ${A[@]}',
        SHAPE,
        SHAPE.replace(" --", "\n--"),
        f'# kept by another script\nARGS=" {SHAPE} "\nexport PARAMS="$ARGS --lr 1"\n',
        f"if [ -f x ]; then\n echo no\nfi\ntorchrun pretrain_gpt.py {SHAPE}",
    ],
)
def test_flags_are_found(text):
    """Every lab starts its trainings in a way of its own."""
    found = flags(text)
    assert (found["--num-layers"], found["--hidden-size"], found["--num-attention-heads"]) == ("2", "64", "2")


def test_the_command_with_most_flags_counts():
    """A tool that is started first, such as one for data, takes a few flags of the same names."""
    text = f"python tools/preprocess_data.py --num-layers 7 --seed 1\ntorchrun pretrain_gpt.py {SHAPE} --seed 2\n"
    launch = read_launch(text)
    assert launch.program == "pretrain_gpt.py"
    assert flags(text)["--seed"] == "2"


def test_flags_of_the_launcher_stay_apart():
    """--nnodes stands before the program; a flag of the same name behind it would be Megatron's."""
    launch = read_launch(
        f"torchrun --nnodes 2 --nproc_per_node=8 --rdzv_backend c10d pretrain_gpt.py {SHAPE}"
    )
    assert [(flag.name, flag.text) for flag in launch.launcher] == [
        ("--nnodes", "2"), ("--nproc-per-node", "8"), ("--rdzv-backend", "c10d"),
    ]  # fmt: skip
    assert [flag.written for flag in launch.launcher][1] == "--nproc_per_node"


def test_variables_of_the_network_travel(migrate):
    """A cluster that needs NCCL_IB_HCA hangs without it; a script's own variables are nobody's business."""
    text = f"export NCCL_IB_HCA=mlx5\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\nexport MINE=3\nNCCL_DEBUG=INFO\npython pretrain_gpt.py {SHAPE}"
    migration = migrate(text=text)
    assert migration.job["orchestration"]["environment"]["set"] == {"NCCL_IB_HCA": "mlx5"}
    assert {flag for flag in fates(migration) if flag.startswith("export")} == {
        "export NCCL_IB_HCA", "export CUDA_DEVICE_MAX_CONNECTIONS",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "echo hello", "python train.py --learning 3", "\x00\x01"]
)
def test_nothing_of_the_kind(migrate, text):
    """A file of another kind must not give an empty job."""
    with pytest.raises(MigrationError, match=r"no flags of Megatron-LM were found|shape of the network"):
        migrate(text=text or "\n", name="x.sh")


def test_notes_become_warnings(migrate):
    """A branch that was left out may hold the flag that someone misses."""
    migration = migrate(text=f"if [ $1 = a ]; then\n A=--bf16\nfi\npython pretrain_gpt.py {SHAPE} $A\n")
    assert any("line 1" in warning for warning in migration.warnings)
    assert "compute" not in migration.job["train"]
