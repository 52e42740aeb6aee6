"""The network: its shape as a preset with changes, and what networks here have not."""

import pytest

from tests.spec.migration.conftest import fates, loaded
from trimtab.catalog import network
from trimtab.plan.layout import network_of
from trimtab.spec.migration import Fate, MigrationError

LLAMA = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008 --swiglu "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 "
    "--max-position-embeddings 4096 --padded-vocab-size 32000 --norm-epsilon 1e-5"
)


def built(migration):
    """The network that the imported job trains."""
    return network_of(loaded(migration).job)


def test_a_network_of_the_catalog_is_found(migrate):
    """Twenty keys for a network that has a name hide the one that differs."""
    migration = migrate(LLAMA)
    assert migration.job["model"] == {"preset": "llama2-7b"}
    assert built(migration) == network("llama2-7b")
    assert migrate(f"{LLAMA} --num-layers 30").job["model"] == {"preset": "llama2-7b", "layers": 30}


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("", "mlp", 1024),
        ("--swiglu", "mlp", 640),
        ("--ffn-hidden-size 700", "mlp", 700),
        ("", "kv_heads", 8),
        ("--group-query-attention --num-query-groups 2", "kv_heads", 2),
        ("--num-key-value-heads 4", "kv_heads", 4),
        ("", "head_size", 32),
        ("--kv-channels 64", "head_size", 64),
        ("--num-attention-heads 4 --kv-channels 32", "head_size", 32),
        ("", "context", 128),
        ("--vocab-size 1000", "vocab", 1024),
        ("--vocab-size 1000 --make-vocab-size-divisible-by 100", "vocab", 1000),
        ("--vocab-size 1000 --tensor-model-parallel-size 4", "vocab", 1024),
        ("--vocab-size 1100 --tensor-model-parallel-size 4", "vocab", 1536),
        ("--padded-vocab-size 999", "vocab", 999),
        ("--tokenizer-type GPT2BPETokenizer", "vocab", 50304),
        ("", "norm", "layernorm"),
        ("--normalization RMSNorm", "norm", "rmsnorm"),
        ("--norm-epsilon 1e-6", "norm_eps", 1e-6),
        ("--layernorm-epsilon 1e-6", "norm_eps", 1e-6),
        ("", "positions", "learned"),
        ("--position-embedding-type rope", "positions", "rotary"),
        ("--use-rotary-position-embeddings", "positions", "rotary"),
        ("--position-embedding-type rope --rotary-base 500000", "rope_base", 500000.0),
        ("", "activation", "gelu"),
        ("--swiglu", "activation", "swiglu"),
        ("", "tied", True),
        ("--untie-embeddings-and-output-weights", "tied", False),
        ("", "bias", "all"),
        ("--disable-bias-linear", "bias", "none"),
        ("--disable-bias-linear --add-qkv-bias", "bias", "qkv"),
        ("--hidden-dropout 0.3 --attention-dropout 0.3", "dropout", 0.3),
        ("", "dropout", 0.1),
        ("--qk-layernorm", "qk_norm", True),
        ("--window-size 127,0", "window", 128),
        ("--num-experts 4 --moe-router-topk 1", "experts", 4),
        ("--num-experts 4 --moe-router-topk 1", "top_k", 1),
        ("--num-experts 4", "top_k", 2),
        ("--num-experts 4 --moe-ffn-hidden-size 300 --ffn-hidden-size 900", "mlp", 300),
        ("--moe-ffn-hidden-size 300 --ffn-hidden-size 900", "mlp", 900),
    ],
)
def test_every_field(migrate, flags, field, value):
    """Megatron's defaults are not ours: what no flag says has to be said here."""
    migration = migrate(flags)
    assert getattr(built(migration), field) == value
    assert not [s for s in migration.settings if s.fate is Fate.IMPOSSIBLE and not s.flag.startswith("--ffn")]


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        ("--position-embedding-type alibi", "positions were alibi and became rotary"),
        ("--squared-relu", "--squared-relu became gelu"),
        ("--num-experts 4 --moe-layer-freq ([0]*3+[1]*5)", "some layers had no experts"),
    ],
)
def test_another_network_is_told_aloud(migrate, flags, warning):
    """A loss curve that differs from the old one starts a search of weeks."""
    migration = migrate(flags)
    assert any(warning in said for said in migration.warnings)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("--multi-latent-attention --kv-lora-rank 512", "--multi-latent-attention"),
        ("--num-experts 4 --moe-shared-expert-intermediate-size 64", "--moe-shared-expert-intermediate-size"),
        ("--num-experts 4 --moe-router-score-function sigmoid", "--moe-router-score-function"),
        ("--mtp-num-layers 1", "--mtp-num-layers"),
        ("--rotary-percent 0.5", "--rotary-percent"),
        ("--init-method-std 0.01", "--init-method-std"),
        ("--hidden-dropout 0 --attention-dropout 0.1", "--attention-dropout"),
        ("--normalization BatchNorm", "--normalization"),
        ("--window-size 127,0 --window-attn-skip-freq 2", "--window-size"),
        ("--window-size 127,127", "--window-size"),
        ("--swiglu --squared-relu", "--squared-relu"),
    ],
)
def test_what_no_network_here_has(migrate, flags, name):
    """No equivalent, with the way out in the reason."""
    setting = fates(migrate(flags))[name]
    assert setting.fate is Fate.IMPOSSIBLE
    assert len(setting.reason) > 15


def test_flags_of_experts_without_experts(migrate):
    """NeMo's files name them in every dense network."""
    found = fates(migrate("--moe-aux-loss-coeff 0.1 --moe-router-topk 2 --moe-layer-freq 1"))
    assert {found[name].reason for name in found if "moe" in name} == {"there are no experts"}


@pytest.mark.parametrize("name", ["--num-layers", "--hidden-size", "--num-attention-heads"])
def test_a_network_without_a_shape_is_refused(migrate, name):
    """A guess would be a network that nobody trained."""
    shape = {"--num-layers": "2", "--hidden-size": "64", "--num-attention-heads": "2"}
    del shape[name]
    with pytest.raises(
        MigrationError, match=f"the shape of the network is not given.*{name}.*trimtab import"
    ):
        migrate(text=" ".join(f"{flag} {value}" for flag, value in shape.items()))


@pytest.mark.parametrize(("flags", "context"), [("--seq-length 4096", 4096), ("", 2048)])
def test_a_sample_fits_the_context(migrate, flags, context):
    """Configurations of Megatron Core name the sequence alone; a preset with a shorter context would be refused."""
    shape = "--num-layers 9 --hidden-size 256 --num-attention-heads 8"
    migration = migrate(text=f"{shape} {flags}\n")
    assert built(migration).context == loaded(migration).job.data.sequence == context


def test_too_many_layers(migrate):
    """A typing error must not fill the memory with stages."""
    with pytest.raises(MigrationError, match="no network has more than"):
        migrate("--num-layers 99999999")


def test_without_a_catalog_every_field_is_given(migrate):
    """Whoever calls the importer from a program need not hand in networks."""
    from trimtab.spec.migration import Source, importer_for

    migration = importer_for("megatron")(Source(text="", name="x", flags=tuple(LLAMA.split())))
    assert built(migration).embed == network("llama2-7b").embed
