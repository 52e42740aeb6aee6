"""Jobs as launches of Megatron-LM: each formula with its flags, and what has none."""

import re
import shlex
from pathlib import Path

import pytest

from tests.spec.migration.conftest import NETWORKS, exportable
from trimtab.spec import load_job
from trimtab.spec.migration import Exportable, Fate, Source, exporter_for, importer_for
from trimtab.spec.migration.megatron.topics import is_known_flag
from trimtab.spec.migration.megatron.written_keys import write_keys
from trimtab.spec.migration.sheets import Sheet

KEYS = Path(__file__).parents[3] / "golden" / "spec" / "keys.txt"

JOB = """
run: there
model: {{preset: gpt-3m{model}}}
data: {{text: python-stdlib, sequence: 128}}
train: {{batch: 64, steps: 10}}
orchestration: {{engine: torchrun, devices: {devices}}}
parallelism: |
  MESH {mesh}
  SPLIT batch OVER dp
  {formula}
fault_tolerance: {{shares: "off"}}
"""


def export(formula="", *, mesh="dp *", devices=8, model=""):
    """The launch of a small job with one more formula."""
    text = JOB.format(formula=formula, mesh=mesh, devices=devices, model=model)
    return exporter_for("megatron")(exportable(load_job(text, source="job.yaml", read=lambda path: "")))


def fate_of(found, beginning):
    """What became of the formula that begins so."""
    (setting,) = [setting for setting in found.settings if setting.flag.startswith(beginning)]
    return setting


FSDP = "--use-distributed-optimizer; --use-megatron-fsdp; --data-parallel-sharding-strategy"
FULL = "--recompute-granularity full; --recompute-method"


@pytest.mark.parametrize(
    ("mesh", "formula", "flags"),
    [
        ("dp *, tp 2", "SPLIT heads, mlp, vocab OVER tp", "--tensor-model-parallel-size 2"),
        ("dp *, tp 2", "SPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp", "--sequence-parallel"),
        ("dp *, cp 2", "SPLIT sequence OVER cp USING ring", "--context-parallel-size 2; --cp-comm-type p2p"),
        ("dp *, cp 2", "SPLIT sequence OVER cp USING ulysses", "--context-parallel-size 2; --cp-comm-type a2a"),
        ("pp 2, dp *", "SPLIT layers OVER pp USING 1f1b", "--pipeline-model-parallel-size 2"),
        (
            "pp 2, dp *",
            "SPLIT layers OVER pp USING interleaved_1f1b(2)",
            "--pipeline-model-parallel-size 2; --num-virtual-stages-per-pipeline-rank 2",
        ),
        ("dp *", "STORE states OVER dp", "--use-distributed-optimizer"),
        ("dp *", "STORE grads, states OVER dp", f"{FSDP} optim_grads; --ckpt-format fsdp_dtensor"),
        ("dp *", "STORE params, grads, states OVER dp", f"{FSDP} optim_grads_params; --ckpt-format fsdp_dtensor"),
        ("dp *", "REDUCE grads OVER dp IN bf16", "--grad-reduce-in-bf16"),
        ("dp *", "REDUCE grads OVER dp BUCKET 40MB", "--ddp-bucket-size 10000000"),
        ("dp *", "RECOMPUTE activations WHERE layer >= 0 AND NOT name LIKE '%.mlp_residual'", f"{FULL} uniform; --recompute-num-layers 1"),
        ("dp *", "RECOMPUTE activations WHERE name LIKE '%.mlp.%'", "--recompute-granularity selective; --recompute-modules mlp"),
        ("dp *", "RECOMPUTE activations WHERE layer < 2 AND NOT name LIKE '%.mlp_residual'", f"{FULL} block; --recompute-num-layers 2"),
        ("dp *", "OFFLOAD states TO host", "--optimizer-cpu-offload; --use-precision-aware-optimizer"),
        ("dp *", "OFFLOAD activations WHERE layer < 2 TO host", "--cpu-offloading-num-layers 2"),
        (
            "dp *",
            "OFFLOAD activations WHERE kind IN ('norm', 'expert') TO host IF ANY",
            "--fine-grained-activation-offloading; --offload-modules attn_norm mlp_norm expert_fc1 moe_act",
        ),
        (
            "dp *",
            "OFFLOAD activations WHERE kind = 'norm' TO host",
            "--fine-grained-activation-offloading; --offload-modules attn_norm mlp_norm",
        ),
        ("dp *", "KEEP states IN bf16", "--use-precision-aware-optimizer; --exp-avg-dtype bf16; --exp-avg-sq-dtype bf16"),
        ("dp *", "COMPUTE layers IN bf16", "--bf16"),
    ],
)  # fmt: skip
def test_formulas_with_flags(mesh, formula, flags):
    """A formula that gets another flag is another training there, and the way back gives it again."""
    found = export(formula, mesh=mesh)
    setting = fate_of(found, formula.split(" WHERE ")[0])
    assert (setting.becomes, setting.fate) == (flags, Fate.CARRIED)
    assert all(flag in found.text for flag in flags.split("; "))


def test_uneven_stages_become_a_layout():
    """Megatron-LM takes layers of each stage as a string."""
    formula = "SPLIT layers OVER pp USING 1f1b\n  PLACE layers BETWEEN 0 AND 0 ON pp 0"
    found = export(formula, mesh="pp 2, dp *", model=", layers: 4")
    assert "--pipeline-model-parallel-layout 'Et|t*3L'" in found.text
    assert fate_of(found, "PLACE").fate is Fate.CARRIED


@pytest.mark.parametrize(
    ("mesh", "formula", "reason"),
    [
        (
            "dp *",
            "AVERAGE params OVER dp EVERY 8 STEPS USING nesterov(0.7)",
            "replicas there take every step together",
        ),
        ("dp *", "SEAL grads OVER dp", "nothing is encrypted"),
        ("dp *", "REDUCE grads OVER dp COMPRESS powersgd(4)", "gradients are not compressed there"),
        ("dp *", "STORE params OVER dp", "what is divided there is states, then grads too"),
        ("dp *", "STORE states WHERE kind = 'linear' OVER dp", "a flag holds for all tensors alike"),
        ("dp *", "STORE states OVER dp ON class = 'H100'", "a flag holds for all devices alike"),
        ("dp *", "RECOMPUTE activations WHERE layer = 1", "whole layers by number, or certain modules"),
        ("dp *", "KEEP params IN bf16", "moments and gradients can be bf16"),
        ("dp *", "OFFLOAD params TO host", "all states, the activations of the first layers"),
        ("dp *", "OFFLOAD activations WHERE kind = 'linear' TO host", "all states, the activations"),
        ("dp *", "COMPUTE layers WHERE layer = 1 IN bf16", "all layers compute in one type there"),
        ("dp *, x 2", "SPLIT embed OVER x", "no flag divides such a tensor"),
    ],
)
def test_formulas_without_flags(mesh, formula, reason):
    """What has no equivalent there is said, and the flags are those of the rest."""
    found = export(formula, mesh=mesh)
    setting = fate_of(found, formula.split()[0] + " " + formula.split()[1])
    assert setting.fate is Fate.IMPOSSIBLE
    assert reason in setting.reason


@pytest.mark.parametrize(
    ("mesh", "formula", "reason"),
    [
        (
            "dp *, tp 2 WITHIN node",
            "SPLIT heads, mlp, vocab OVER tp",
            "nothing there demands that an axis stays inside",
        ),
        ("tp 2, dp *", "SPLIT heads, mlp, vocab OVER tp", "neighbours are other devices"),
    ],
)
def test_a_mesh_of_another_order_is_told(mesh, formula, reason):
    """The numbers are the same, and every message takes another way."""
    setting = fate_of(export(formula, mesh=mesh), "MESH")
    assert setting.fate is Fate.CHANGED
    assert reason in setting.reason


def test_stages_inside_data_have_a_flag():
    """Megatron-LM knows one other order."""
    found = export("SPLIT layers OVER pp USING 1f1b", mesh="dp *, pp 2")
    assert "--use-tp-pp-dp-mapping" in found.text
    assert fate_of(found, "MESH").fate is Fate.CARRIED


@pytest.mark.parametrize("name", ["looped_bfs(2)", "interleaved_zero_bubble(2)", "gpipe"])
def test_other_schedules_are_told(name):
    """The pipeline runs there too, with another bubble."""
    setting = fate_of(export(f"SPLIT layers OVER pp USING {name}", mesh="pp 2, dp *"), "SPLIT layers")
    assert setting.fate is Fate.CHANGED
    assert name.partition("(")[0] in setting.reason


def test_every_flag_is_one_that_megatron_takes():
    """A misspelt flag ends the launch with a usage message."""
    everything = "SPLIT heads, mlp, vocab OVER tp\n  SPLIT layers OVER pp USING 1f1b\n  STORE params, grads, states OVER dp\n"
    everything += (
        "  RECOMPUTE activations WHERE name LIKE '%.mlp.%'\n  KEEP states IN bf16\n  OFFLOAD states TO host"
    )
    text = export(everything, mesh="pp 2, dp *, tp 2").text
    words = shlex.split(text.partition("pretrain_gpt.py")[2].replace("\\\n", " "))
    flags = [word for word in words if word.startswith("--")]
    assert len(flags) > 20
    assert [flag for flag in flags if not is_known_flag(flag)] == []


def test_modules_stand_behind_one_flag():
    """argparse would keep the last of two."""
    both = "RECOMPUTE activations WHERE name LIKE '%.mlp.%'\n  RECOMPUTE activations WHERE kind = 'norm' AND layer IS NOT NULL"
    assert "--recompute-modules mlp layernorm\n" in f"{export(both).text}\n"


def keys():
    """Every key of a job file that holds a value, by its dotted path."""
    lines = [line.partition(": ") for line in KEYS.read_text(encoding="utf-8").splitlines()]
    return [path for path, _, takes in lines if not takes.startswith("a mapping")]


def test_every_key_has_an_answer():
    """A key that is added to the job file and forgotten here would be dropped in silence."""
    text = """
run: all
model: {preset: gpt-3m, layers: 2}
data: {text: python-stdlib, field: body, tokenizer: a/tokenizer.json, sequence: 64, held_out: 0.1, packing: pad, cache: /c}
train:
  %(length)s
  batch: 64
  microbatch: 1
  seed: 3
  optimizer: %(optimizer)s
  lr_schedule: %(schedule)s
  clip: 0.5
  compute: bf16
  evaluate: {every: 2, batches: 3}
  on_nonfinite: skip
  compile: blocks
  on_spike: {answer: skip, loss: 5, grad_norm: 7, window: 32, suspect: 4}
orchestration:
  engine: local
  devices: 8
  threads: 2
  price_usd_per_device_hour: 2.5
  storage_usd_per_gb_month: 0.02
  cluster: 512xH100
  runs: /r
  grace: 20s
  hosts: 2
  listen: "10.0.0.1:29400"
  interface: eth0
  token_file: /t
  unreachable: 30s
  environment: {pass: [HOME], set: {NCCL_DEBUG: INFO, API_TOKEN: hidden}}
fault_tolerance:
  shares: 8
  on_loss: rollback
  replace: true
  balance: 4
  digest_every: 10
  snapshots: 2
  checkpoint: {every: 5, keep: 2, keep_best: true, keep_every: 10, to: /c, sign: "env:SIGNING", encrypt: "env:PROJECT"}
  detection:
    {deadline: 50s, heartbeat: 3s, progress: 60s, step: 1h, save: 60s, evaluation: 60s, first_step: 60s, start: 60s,
     park: 9s, probe: 0.1, compare: 5}
  restarts: {node_loss: 2, user_error: 1, forgiven_after: 50, script: 2}
"""
    adamw = "{adamw: {lr: 0.1, betas: [0.8, 0.9], eps: 1e-7, weight_decay: 0.2}}"
    sgd = "{sgd: {lr: 0.1, momentum: 0.8, weight_decay: 0.2, nesterov: true}}"
    ways = [
        ("steps: 10", adamw, "{cosine: {warmup: 2, floor: 0.5}}"),
        ("epochs: 2", sgd, "{linear: {warmup: 2, floor: 0.5}}"),
        ("steps: 10", sgd, "{constant: {warmup: 2}}"),
        ("steps: 10", sgd, "{step: {warmup: 2, every: 3, factor: 0.5}}"),
        ("steps: 10", sgd, "{inverse_sqrt: {warmup: 2}}"),
        ("steps: 10", sgd, "{restarts: {warmup: 2, period: 4, floor: 0.2}}"),
    ]
    answered = set()
    for length, optimizer, schedule in ways:
        filled = text % {"length": length, "optimizer": optimizer, "schedule": schedule}
        loaded = load_job(filled, source="all.yaml", read=lambda path: "")
        sheet = Sheet()
        write_keys(sheet, exportable(loaded))
        answered |= {setting.flag for setting in sheet.settings}
    expected = {path for path in keys() if not path.startswith(("model.", "parallelism"))}
    unset = {"data.tokenizer.bpe.vocab", "orchestration.environment.set"}
    unset |= {"script.file", "script.args"}  # A script's network is not known: there is nothing to export.
    assert expected - answered - unset == set()


def test_secrets_are_not_written():
    """A script is sent around."""
    job = JOB.format(formula="", mesh="dp *", devices=8, model="").replace(
        "devices: 8", "devices: 8, environment: {set: {HF_TOKEN: abc, A: 'x y'}}"
    )
    found = exporter_for("megatron")(exportable(load_job(job, source="job.yaml", read=lambda path: "")))
    assert "abc" not in found.text
    assert "# export HF_TOKEN=: a secret is not written\nexport A='x y'\n" in found.text


def test_paths_are_quoted():
    """A blank or a dollar in a path must not become two words or a variable."""
    job = JOB.format(formula="", mesh="dp *", devices=8, model="")
    job = job.replace("engine: torchrun", "engine: torchrun, runs: '/a b/$C'").replace(
        "text: python-stdlib", "text: [a b, c]"
    )
    text = exporter_for("megatron")(exportable(load_job(job, source="job.yaml", read=lambda path: ""))).text
    assert "--save '/a b/$C'" in text
    assert "--data-path 'a b' c" in text


def test_a_class_of_the_users_own():
    """Its shape is nobody's to know; degrees and training are exported all the same."""
    job = JOB.format(formula="STORE states OVER dp", mesh="dp *", devices=8, model="")
    job = job.replace("{preset: gpt-3m}", "{module: 'mine:Net'}")
    loaded = load_job(job, source="job.yaml", read=lambda path: "")
    found = exporter_for("megatron")(Exportable(loaded=loaded, name="job.yaml"))
    assert fate_of(found, "model.module").fate is Fate.IMPOSSIBLE
    assert "--use-distributed-optimizer" in found.text
    assert any("its class is your own" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("devices", "per_node", "words"),
    [(8, 4, ("2", "4")), (6, 4, ("2", "3")), (1, None, ("1", "1")), (16, None, ("2", "8"))],
)
def test_launcher(devices, per_node, words):
    """Ranks that do not fill machines leave the launch waiting for more."""
    text = JOB.format(formula="", mesh="dp *", devices=devices, model="").replace("batch: 64", "batch: 48")
    loaded = load_job(text, source="job.yaml", read=lambda path: "")
    found = exporter_for("megatron")(
        Exportable(
            loaded=loaded, name="job.yaml", network=exportable(loaded).network, devices_per_node=per_node
        )
    )
    assert (
        re.search(
            r"torchrun --nnodes (\d+) --nproc-per-node (\d+) \\\n +pretrain_gpt.py", found.text
        ).groups()
        == words
    )
    source = Source(text=found.text, name="x.sh", networks=NETWORKS)
    assert importer_for("megatron")(source).job["orchestration"]["devices"] == devices
