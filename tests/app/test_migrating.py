"""The verbs import and export."""

import json
import re
from pathlib import Path

import pytest

from tests.spec.migration.conftest import CONFIGURATIONS, SHAPE, loaded, migrated
from trimtab.catalog import Cluster, Level, Link, Node, accelerator
from trimtab.plan.compiling import compile_program
from trimtab.plan.layout import network_of
from trimtab.plan.training import Training
from trimtab.spec import load_job, resolve_mesh

SCRIPT = f"""\
#!/bin/bash
MODEL=( {SHAPE} )
torchrun --nnodes 1 --nproc-per-node 4 pretrain_gpt.py "${{MODEL[@]}}" \\
    --tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16 --train-iters 5 --lr 1e-3
"""


def cluster_of(devices):
    """H100s in machines of eight."""
    machines = [min(8, devices - first) for first in range(0, devices, 8)]
    links = [Link(level=Level.NODE, bytes_per_s=450e9, latency_s=1e-6, source="")]
    if len(machines) > 1:
        links.append(Link(level=Level.SITE, bytes_per_s=50e9, latency_s=3e-6, source=""))
    nodes = tuple(Node(accelerator=accelerator("H100-SXM-80GB"), num_devices=count) for count in machines)
    return Cluster(name="there", nodes=nodes, links=tuple(links), source="")


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_public_training_has_a_plan(name):
    """Formulas that load and that the planner refuses move nobody in: each becomes a verified plan."""
    read = loaded(migrated(name))
    job, devices = read.job, read.job.orchestration.devices
    training = Training(
        network=network_of(job),
        batch=job.train.batch,
        microbatch=job.train.microbatch,
        sequence=job.data.sequence,
        shares=job.fault_tolerance.shares,
        compute=job.train.compute.value,
        num_states=2,
    )
    plan = compile_program(
        read.program, training, mesh=resolve_mesh(read.program, devices), cluster=cluster_of(devices)
    )
    assert plan.mesh.num_devices == devices


@pytest.fixture
def script(desk):
    (desk / "old.sh").write_text(SCRIPT)
    return "old.sh"


def test_a_job_file_and_a_table(cli, script, desk):
    """The two things that someone who moves in needs: what to run, and what became of each flag."""
    answer = cli("import", "megatron", script, "--out", "new.yaml")
    assert answer.code == 0
    assert answer.out.startswith("carried (")
    assert "--tensor-model-parallel-size 2  MESH dp *, tp 2; SPLIT heads, mlp, vocab OVER tp" in answer.out
    assert answer.out.endswith("wrote new.yaml; next: trimtab explain new.yaml\n")
    assert load_job((desk / "new.yaml").read_text(), source="new.yaml", read=open).job.train.batch == 16


def test_without_a_name_the_job_file_is_printed_alone(cli, script):
    """`> job.yaml` must give a job file; the table goes where people read it."""
    answer = cli("import", "megatron", script)
    assert load_job(answer.out, source="out", read=open).job.run == "old"
    assert "carried (" in answer.err


def test_flags_behind_the_file_count_last(cli, script):
    """What a variable leaves open is given there."""
    answer = cli(
        "import",
        "megatron",
        script,
        "--devices",
        "8",
        "--",
        "--lr",
        "5e-4",
        "--pipeline-model-parallel-size",
        "2",
    )
    job = load_job(answer.out, source="out", read=open).job
    assert job.train.optimizer.chosen.lr == 5e-4
    assert "MESH pp 2, dp *, tp 2" in answer.out


def test_flags_without_a_file(cli):
    """Someone who has a command line and no script."""
    answer = cli("import", "megatron", "--", *SHAPE.split(), "--bf16")
    assert answer.code == 0
    assert "compute: bf16  # --bf16" in answer.out


def test_json(cli, script, desk):
    """A program that moves a hundred scripts reads this."""
    document = cli("import", "megatron", script, "--out", "new.yaml", "--json").document
    assert document["job"] == (desk / "new.yaml").read_text()
    assert document["file"] == "new.yaml"
    assert document["refused"] is None
    assert document["formulas"].startswith("MESH dp *, tp 2\n")
    assert document["counts"]["carried"] == len([s for s in document["settings"] if s["fate"] == "carried"])


def test_a_job_that_cannot_be_is_told(cli, script):
    """Settings may contradict each other here: the job is written, its reader knows, the exit code says so."""
    answer = cli("import", "megatron", script, "--", "--lr", "-1")
    assert answer.code == 2
    assert "these settings cannot hold together here; change the job file" in answer.err
    assert "lr" in answer.err
    assert cli("import", "megatron", script, "--json", "--", "--lr", "-1").document["refused"]


def test_a_network_that_cannot_be_is_told(cli, script):
    """Three heads of a width of 256 are no heads."""
    answer = cli(
        "import", "megatron", script, "--", "--num-attention-heads", "3", "--tensor-model-parallel-size", "1"
    )
    assert answer.code == 2
    assert "heads is 3" in answer.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("import", "megatorn", "old.sh"), "unknown system 'megatorn'.*Did you mean 'megatron'"),
        (("export", "torchrum", "job.yaml"), "unknown system 'torchrum'.*Did you mean 'torchrun'"),
        (("import", "megatron"), "name a file with the settings"),
        (("import", "megatron", "none.sh"), "none.sh: cannot read the settings"),
        (("import", "megatron", "job.yaml"), "job.yaml: .*shape of the network is not given"),
        (("import", "megatron", "tokens.bin"), "tokens.bin: the settings are not UTF-8 text"),
        (("import", "megatron", "open.sh"), "open.sh: line 1: the quote"),
        (("export", "megatron", "none.yaml"), "none.yaml: cannot read the job file"),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_what_cannot_be_read(cli, desk, script, arguments, message, form):
    """One sentence with the name of the file, exit code 2, nothing written."""
    (desk / "tokens.bin").write_bytes(b"\xff\xfe\x00")
    (desk / "open.sh").write_text("echo 'a\n")
    before = sorted(desk.iterdir())
    answer = cli(*arguments, *form)
    assert answer.code == 2
    said = json.loads(answer.out)["error"] if form else answer.err
    assert "Traceback" not in answer.err
    assert re.search(message, said), said
    assert sorted(desk.iterdir()) == before


@pytest.mark.parametrize("arguments", [("import", "megatron", "old.sh"), ("export", "megatron", "job.yaml")])
def test_no_file_is_written_over(cli, script, desk, arguments):
    """A job that someone has changed by hand is not lost to a second import."""
    answer = cli(*arguments, "--out", "job.yaml")
    assert answer.code == 2
    assert "job.yaml is already there" in answer.err


def test_export(cli, desk):
    """The launch is printed alone, or written; the table says what has no equivalent there."""
    answer = cli("export", "megatron", "job.yaml")
    assert answer.out.startswith("#!/bin/bash\n")
    assert "torchrun --nnodes 1 --nproc-per-node 2" in answer.out
    assert "orchestration.price_usd_per_device_hour 2" in answer.err
    written = cli("export", "megatron", "job.yaml", "--out", "there.sh", "--set", "train.batch=12")
    assert written.out.endswith("wrote there.sh\n")
    assert "--global-batch-size 12" in (desk / "there.sh").read_text()
    document = cli("export", "megatron", "job.yaml", "--json").document
    assert document["text"] == answer.out
    assert {setting["flag"] for setting in document["settings"]} >= {"model.preset", "train.steps"}


def test_export_to_torchrun(cli):
    """The line of docs/engines.md, for this job."""
    answer = cli("export", "torchrun", "job.yaml")
    assert answer.out == (
        "torchrun --nnodes 1 --nproc-per-node 2 --max-restarts 16 --shutdown-timeout 30 --rdzv-id quick "
        "--rdzv-backend c10d --rdzv-endpoint HOST:PORT -m trimtab.runtime.elastic_worker job.yaml\n"
    )


def test_devices_of_a_machine_come_from_the_cluster(cli):
    """A cluster in the job says how many devices a machine holds."""
    sets = (
        "--set",
        "orchestration.devices=512",
        "--set",
        "orchestration.cluster=512xH100",
        "--set",
        "train.batch=512",
    )
    sets += (
        "--set",
        "fault_tolerance.shares=off",
    )
    answer = cli("export", "torchrun", "job.yaml", *sets)
    assert "--nnodes 64 --nproc-per-node 8" in answer.out
    assert "warning" not in answer.err
    wrong = cli("export", "torchrun", "job.yaml", "--set", "orchestration.cluster=512xH10")
    assert wrong.code == 2


def test_there_and_back(cli, script, desk):
    """A job goes out and comes back with the same formulas."""
    cli("import", "megatron", script, "--out", "a.yaml")
    cli("export", "megatron", "a.yaml", "--out", "b.sh")
    first, second = (cli("import", "megatron", name, "--json").document for name in (script, "b.sh"))
    assert first["formulas"] == second["formulas"]


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("system", "name", "devices"),
    [("deepspeed", "deepspeed-zero3.json", 16), ("torchtitan", "torchtitan-hsdp.toml", 64)],
)
def test_configurations_of_other_systems(cli, desk, system, name, devices):
    """The files do not know how many devices there are."""
    answer = cli("import", system, str(EXAMPLES / name), "--devices", str(devices), "--out", "new.yaml")
    assert answer.code == 0
    job = load_job((desk / "new.yaml").read_text(), source="new.yaml", read=open).job
    assert job.orchestration.devices == devices


def test_what_hugging_face_fills_in_is_given_behind_the_file(cli, desk):
    """A file with auto does not know it."""
    (desk / "ds.json").write_text('{"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}}')
    answer = cli("import", "deepspeed", "ds.json", "--", "--per_device_train_batch_size", "2", "--bf16")
    job = load_job(answer.out, source="out", read=open).job
    assert job.train.microbatch == 2
    assert job.train.compute.value == "bf16"


def test_export_to_deepspeed(cli, desk):
    """A file that DeepSpeed reads, and back again."""
    answer = cli("export", "deepspeed", "job.yaml", "--out", "ds.json")
    assert answer.out.endswith("wrote ds.json\n")
    job = load_job((desk / "job.yaml").read_text(), source="job.yaml", read=open).job
    assert json.loads((desk / "ds.json").read_text())["train_batch_size"] == job.train.batch
    assert cli("import", "deepspeed", "ds.json", "--devices", "2").code == 0
