"""Any flags in any combination: a job or a refusal in words, every flag in the table, and back again."""

import contextlib

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.spec.migration.conftest import NETWORKS, SHAPE, exportable, loaded
from trimtab.spec import JobFileError
from trimtab.spec.migration import MigrationError, Source, exporter_for, importer_for, render_table
from trimtab.spec.migration.megatron.topics import gatherers, read_flags, switches, topics
from trimtab.terms import InputError

WORDS = ("adam", "sgd", "cosine", "WSD", "rope", "full", "selective", "uniform", "block", "p2p", "a2a", "optim", "bf16",
         "e4m3", "hybrid", "moe", "mlp", "99,1,0", "Et|(t|)*6tL", "127,0", "RMSNorm", "$X", "${Y}", "x/y.json", "")  # fmt: skip
NUMBERS = st.sampled_from(
    ("0", "1", "2", "3", "4", "8", "64", "-1", "0.1", "1e-4", "1_000", "nan", "1e400", "9" * 30)
)
EXACT = sorted({flag for topic in topics() for flag in topic.flags if "*" not in flag})


def flag(name):
    """A flag with values of its arity, sensible or not."""
    if name in switches():
        return st.just([name])
    values = st.lists(NUMBERS | st.sampled_from(WORDS), min_size=1, max_size=3 if name in gatherers() else 1)
    return values.map(lambda found: [name, *found])


FLAGS = st.lists(st.sampled_from([*read_flags(), *EXACT[::7]]).flatmap(flag), max_size=12)
TEXTS = {
    "--optimizer": ("adam", "sgd", "lion"),
    "--lr-decay-style": ("cosine", "WSD", "inverse-square-root"),
    "--recompute-granularity": ("full", "selective", "half"),
    "--recompute-method": ("uniform", "block"),
    "--recompute-modules": ("mlp", "moe core_attn", "mla_up_proj"),
    "--offload-modules": ("attn_norm", "unheard"),
    "--position-embedding-type": ("rope", "alibi", "learned_absolute"),
    "--normalization": ("RMSNorm", "LayerNorm"),
    "--data-parallel-sharding-strategy": ("no_shard", "optim", "optim_grads"),
    "--exp-avg-dtype": ("bf16", "fp8"),
    "--main-grads-dtype": ("bf16", "fp32"),
    "--cp-comm-type": ("p2p", "a2a"),
    "--split": ("99,1,0", "100,0,0"),
    "--glu-activation": ("swiglu", "geglu"),
}
"""Values of flags that take no numbers."""

MANY = st.sets(
    st.sampled_from([name for name in read_flags() if name != "--pipeline-model-parallel-layout"]),
    min_size=40,
)
"""Flags that stand beside one another in no script."""
DEGREES = st.fixed_dictionaries(
    {
        "--tensor-model-parallel-size": st.sampled_from((1, 2, 4)),
        "--pipeline-model-parallel-size": st.sampled_from((1, 2, 4)),
        "--context-parallel-size": st.sampled_from((1, 2)),
        "--expert-model-parallel-size": st.sampled_from((1, 2, 4)),
        "--num-virtual-stages-per-pipeline-rank": st.sampled_from((1, 2)),
        "--num-distributed-optimizer-instances": st.sampled_from((1, 2)),
        "--num-experts": st.sampled_from((0, 8)),
        "--global-batch-size": st.sampled_from((32, 64)),
    }
)
CHOICES = st.lists(
    st.sampled_from(
        (
            "--sequence-parallel", "--use-distributed-optimizer", "--use-megatron-fsdp", "--use-tp-pp-dp-mapping", "--bf16",
            "--recompute-granularity full --recompute-method uniform", "--recompute-granularity selective",
            "--recompute-granularity full --recompute-method block --recompute-num-layers 1", "--grad-reduce-in-bf16",
            "--fp8-format hybrid", "--cp-comm-type a2a", "--optimizer-cpu-offload", "--swiglu", "--disable-bias-linear",
            "--decoder-last-pipeline-num-layers 1", "--account-for-loss-in-pipeline-split", "--cpu-offloading-num-layers 3",
            "--fine-grained-activation-offloading --offload-modules attn_norm core_attn",
        )
    ),
    unique=True,
)  # fmt: skip


def read(words):
    return importer_for("megatron")(Source(text="", name="any", flags=tuple(words), networks=NETWORKS))


@settings(max_examples=100, deadline=None)
@given(flags=FLAGS)
def test_a_table_or_a_refusal(flags):
    """An unexpected value must end in a sentence, and a flag that nobody answers for must not be lost."""
    words = [*SHAPE.split(), *(word for found in flags for word in found)]
    try:
        migration = read(words)
    except MigrationError:
        return
    names = [word for word in words if word.startswith("--")]
    shown = [setting.flag for setting in migration.settings]
    assert [name for name in names if name not in shown] == []
    assert render_table(migration)
    with contextlib.suppress(
        JobFileError
    ):  # a value that no job can have, such as a rate of -1, is refused with its line
        loaded(migration)


@settings(max_examples=100, deadline=None)
@given(names=MANY, number=st.sampled_from(("1", "2")), data=st.data())
def test_many_flags_at_once(names, number, data):
    """Flags that contradict each other, such as two activations, must all be answered for."""
    words = []
    for name in sorted(names - set(switches())):
        words += [name, *data.draw(st.sampled_from(TEXTS.get(name, (number,)))).split()]
    with contextlib.suppress(MigrationError):
        shown = {
            setting.flag for setting in read([*words, *(names & set(switches())), *SHAPE.split()]).settings
        }
        assert names <= shown


SCRAPS = st.sampled_from(
    ("--lr", "1", "$A", "${A[@]}", "A=(", ")", "\n", " ", "if", "[ $A = 1 ]", "; then", "fi", "else", "case $A in", "1)", ";;",
     "esac", "for i in 1 2", "; do", "done", "'", '"', "\\", "$((", "))", "$(", "<<EOF", "EOF", "pretrain_gpt.py", "torchrun",
     "#", ": ", "- ", "a:", "{", "}", "[", "]", "bash -c", "eval", "|", "&&", "\t", "model:", "*", "&x", "%", "\0", "é")
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(SCRAPS, max_size=30).map(" ".join)
    | st.lists(SCRAPS, max_size=30).map("".join)
    | st.text(max_size=60)
)
def test_any_text(text):
    """Whatever file is named by mistake, the answer is a sentence."""
    with contextlib.suppress(InputError):
        importer_for("megatron")(Source(text=text, name="any.sh", flags=("--seed", "1"), networks=NETWORKS))


@settings(max_examples=60, deadline=None)
@given(degrees=DEGREES, choices=CHOICES)
def test_sensible_flags_go_there_and_back(degrees, choices):
    """Any combination of degrees and storage that Megatron-LM takes is a job, and the job gives the same flags."""
    words = [*SHAPE.split(), *(str(word) for pair in degrees.items() for word in pair)]
    if degrees["--num-experts"] == 0:
        words += ["--expert-model-parallel-size", "1"]
    if degrees["--num-distributed-optimizer-instances"] > 1:
        words.append("--use-distributed-optimizer")
    words += " ".join(["--lr 1e-4", *choices]).split()
    try:
        first = read(words)
    except MigrationError:  # a last stage of one layer beside two stages a rank does not come out
        assume(False)
    job = loaded(first)
    script = exporter_for("megatron")(exportable(job)).text
    second = importer_for("megatron")(Source(text=script, name="any", networks=NETWORKS))
    assert loaded(second).layout.mesh == job.layout.mesh
    if "BALANCE BY time" not in first.formulas:  # no flag balances: a layout names the layers
        assert second.formulas == first.formulas
    assert (second.job["model"], second.job["train"]) == (first.job["model"], first.job["train"])
