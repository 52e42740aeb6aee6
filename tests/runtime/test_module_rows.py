import pytest
import torch

from trimtab.catalog import network
from trimtab.plan import Table, rows_of
from trimtab.runtime.decoder import Decoder
from trimtab.runtime.dim_inference import layer_stacks
from trimtab.runtime.module_dims import Provenance, module_parameters
from trimtab.runtime.module_rows import rows_of_module
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.terms import InputError

SOURCE = '''
import torch
from torch import nn
from torch.nn import functional


class CausalSelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict(
            dict(c_fc=nn.Linear(width, 4 * width), act=nn.GELU(), c_proj=nn.Linear(4 * width, width))
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp.c_proj(self.mlp.act(self.mlp.c_fc(self.ln_2(x))))


class Gpt(nn.Module):
    """In the form of nanoGPT: parts under `transformer`, a fused projection, a tied head."""

    def __init__(self, width=32, vocab=100, layers=2):
        super().__init__()
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(vocab, width),
                wpe=nn.Embedding(64, width),
                h=nn.ModuleList(Block(width, 4) for _ in range(layers)),
                ln_f=nn.LayerNorm(width),
            )
        )
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens, targets=None):
        x = self.transformer.wte(tokens) + self.transformer.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


class Expert(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)))


class Moe(nn.Module):
    def __init__(self, width, inner, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Expert(width, inner) for _ in range(experts))

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        return sum(expert(x) * weights[..., i : i + 1] for i, expert in enumerate(self.experts))


class Attention(nn.Module):
    def __init__(self, width, inner, kv):
        super().__init__()
        self.wq, self.wo = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)
        self.wk, self.wv = nn.Linear(width, kv, bias=False), nn.Linear(width, kv, bias=False)

    def forward(self, x):
        return self.wo(self.wq(x) * (self.wk(x) + self.wv(x)).repeat(1, 1, 2))


class MoeLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm = Attention(24, 32, 16), nn.RMSNorm(24)
        self.feed_forward = Moe(24, 40, 3)

    def forward(self, x):
        return x + self.feed_forward(self.norm(x + self.attention(x)))


class MoeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 24)
        self.layers = nn.ModuleList(MoeLayer() for _ in range(2))
        self.output = nn.Linear(24, 100, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


class Odd(nn.Module):
    """Nothing here follows a habit of naming."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 24)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(24, 72), nn.ReLU(), nn.Linear(72, 24)) for _ in range(2)))
        self.square = nn.Linear(24, 24)
        self.mixer = nn.Parameter(torch.zeros(24, 56))
        self.stacked_experts = nn.Module()
        self.stacked_experts.experts = nn.Parameter(torch.zeros(5, 24, 7))
        self.frozen = nn.Linear(24, 24).requires_grad_(False)
        self.out = nn.Linear(24, 100)

    def forward(self, tokens):
        return self.out(self.frozen(self.square(self.blocks(self.table(tokens)))))


class Annotated(Odd):
    dims = {
        "mixer": ("embed", "channels"),
        "blocks.*.0.weight": ("mlp", "embed"),
        "blocks.1.0.weight": ("wide", "embed"),
    }


class AnnotatedByMethod(Odd):
    def __init__(self, said):
        super().__init__()
        self.said = said

    def dims(self):
        return self.said


class OtherDims(Odd):
    dims = [64, 128]


class Stacks(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList(Block(32, 4) for _ in range(2))
        self.decoder = nn.ModuleList(Block(32, 4) for _ in range(3))
        self.head = nn.Sequential(nn.Linear(32, 8), nn.Linear(8, 3))


class TorchEncoder(nn.Module):
    """Torch's own layers."""

    def __init__(self):
        super().__init__()
        self.pos_table = nn.Embedding(50, 32)
        self.embed = nn.Embedding(100, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classes = nn.Linear(32, 7)
        self.head = nn.Linear(32, 100)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)))


class Looks(Odd):
    def forward(self, tokens):
        return self.out(self.table(tokens)) * (1 if tokens.sum().item() else 2)


class ReadsInInit(nn.Module):
    def __init__(self):
        super().__init__()
        self.size = torch.ones(3).sum().item()


class LossAndCount(Gpt):
    def forward(self, tokens, targets):
        logits = super().forward(tokens)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"), targets.numel()
'''


@pytest.fixture(autouse=True)
def user_module(tmp_path, monkeypatch):
    (tmp_path / "user_networks.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)


def tables(class_name, **arguments):
    return rows_of_module(
        f"user_networks:{class_name}",
        arguments=arguments,
        batch=2,
        sequence=8,
        num_states=2,
        compute="bf16",
    )


def rows(class_name, table, **arguments):
    found = tables(class_name, **arguments).rows
    return {sourced.row.name: sourced.row for sourced in found if sourced.row.table is table}


def dims(class_name, **arguments):
    return {name: ",".join(row.dims) for name, row in rows(class_name, Table.PARAMS, **arguments).items()}


def test_a_network_of_the_catalog_is_recognised_by_its_names():
    """The inference must find on a known network what the catalog states."""
    for preset in (network("gpt-3m", vocab=300), network("llama-3m", vocab=300, qk_norm=True, head_size=40)):
        with torch.device("meta"):
            decoder = Decoder(preset, KeyedRandom())
        found = {p.name: (p.dims, p.kind, p.layer) for p in module_parameters(decoder, "decoder")}
        for tensor in preset.tensors():
            stated = tuple("d40" if dim == "head" else dim for dim in tensor.dims)
            assert found[tensor.name] == (stated, tensor.kind.value, tensor.layer), tensor.name


def test_parameters_in_the_form_of_nanogpt():
    """The most copied of all small networks."""
    assert dims("Gpt", layers=1) == {
        "transformer.wte.weight": "vocab,embed",
        "transformer.wpe.weight": "context,embed",
        "transformer.h.0.ln_1.weight": "embed",
        "transformer.h.0.ln_1.bias": "embed",
        "transformer.h.0.attn.c_attn.weight": "d96,embed",
        "transformer.h.0.attn.c_attn.bias": "d96",
        "transformer.h.0.attn.c_proj.weight": "embed,heads",
        "transformer.h.0.attn.c_proj.bias": "embed",
        "transformer.h.0.ln_2.weight": "embed",
        "transformer.h.0.ln_2.bias": "embed",
        "transformer.h.0.mlp.c_fc.weight": "mlp,embed",
        "transformer.h.0.mlp.c_fc.bias": "mlp",
        "transformer.h.0.mlp.c_proj.weight": "embed,mlp",
        "transformer.h.0.mlp.c_proj.bias": "embed",
        "transformer.ln_f.weight": "embed",
        "transformer.ln_f.bias": "embed",
    }


def test_kinds_and_layers():
    """What a WHERE selects by; a layer's number must not be that of a matrix in a Sequential."""
    found = {name: (row.kind, row.layer) for name, row in rows("MoeModel", Table.PARAMS).items()}
    assert found["embed.weight"] == ("embedding", None)
    assert found["layers.1.attention.wq.weight"] == ("linear", 1)
    assert found["layers.1.norm.weight"] == ("norm", 1)
    assert found["layers.0.feed_forward.gate.weight"] == ("router", 0)
    assert found["layers.1.feed_forward.experts.2.w1.weight"] == ("expert", 1)
    assert found["output.weight"] == ("head", None)


def test_heads_and_experts_of_other_widths():
    """Grouped keys, heads wider than the stream, and experts one by one."""
    found = dims("MoeModel")
    assert found["layers.0.attention.wq.weight"] == "heads,embed"
    assert found["layers.0.attention.wk.weight"] == "kv_heads,embed"
    assert found["layers.0.attention.wo.weight"] == "embed,heads"
    assert found["layers.0.feed_forward.gate.weight"] == "routes,embed"
    assert found["layers.0.feed_forward.experts.0.w1.weight"] == "mlp,embed"
    assert found["output.weight"] == "vocab,embed"


def test_torchs_own_layers():
    """Who builds from these writes no names of the field."""
    found = dims("TorchEncoder")
    assert {
        name.removeprefix("encoder.layers.1."): named for name, named in found.items() if "layers.1" in name
    } == {
        "self_attn.in_proj_weight": "d96,embed",
        "self_attn.in_proj_bias": "d96",
        "self_attn.out_proj.weight": "embed,heads",
        "self_attn.out_proj.bias": "embed",
        "linear1.weight": "mlp,embed",
        "linear1.bias": "mlp",
        "linear2.weight": "embed,mlp",
        "linear2.bias": "embed",
        "norm1.weight": "embed",
        "norm1.bias": "embed",
        "norm2.weight": "embed",
        "norm2.bias": "embed",
    }
    assert found["pos_table.weight"] == "context,embed"
    assert found["classes.weight"] == "d7,embed"
    assert found["head.weight"] == "vocab,embed"


def test_what_has_no_name_is_called_by_its_size():
    """A guess that is wrong would split the wrong axis; a size is never wrong."""
    assert dims("Odd") == {
        "mixer": "embed,d56",
        "table.weight": "vocab,embed",
        "blocks.0.0.weight": "mlp,embed",
        "blocks.0.0.bias": "mlp",
        "blocks.0.2.weight": "embed,mlp",
        "blocks.0.2.bias": "embed",
        "blocks.1.0.weight": "mlp,embed",
        "blocks.1.0.bias": "mlp",
        "blocks.1.2.weight": "embed,mlp",
        "blocks.1.2.bias": "embed",
        "square.weight": "d24,embed",
        "square.bias": "d24",
        "stacked_experts.experts": "experts,embed,d7",
        "frozen.weight": "d24,embed",
        "frozen.bias": "d24",
        "out.weight": "vocab,embed",
        "out.bias": "vocab",
    }


def test_every_row_says_how_it_is_known():
    """Who relies on a name must see whether it was guessed."""
    found = {s.row.name: s for s in tables("Annotated").rows if s.row.table is Table.PARAMS}
    assert found["mixer"].provenance is Provenance.ANNOTATED
    assert found["mixer"].row.dims == ("embed", "channels")
    assert found["mixer"].reason == "dims['mixer']"
    assert found["out.weight"].provenance is Provenance.INFERRED
    assert found["out.weight"].reason == "a matrix from width to tokens"
    assert found["square.weight"].reason == "by size"
    grads = {s.row.name: s for s in tables("Annotated").rows if s.row.table is Table.GRADS}
    assert grads["mixer"].provenance is Provenance.ANNOTATED


def test_the_last_annotation_that_fits_decides():
    """As the last statement does; a size that another dim took back is a size again."""
    found = dims("Annotated")
    assert found["blocks.0.0.weight"] == "mlp,embed"
    assert found["blocks.1.0.weight"] == "wide,embed"


def test_an_annotated_size_keeps_its_name_from_inferred_ones():
    """One dim has one size: what the user said holds."""
    found = dims("AnnotatedByMethod", said={"mixer": ("embed", "mlp")})
    assert found["mixer"] == "embed,mlp"
    assert found["blocks.0.0.weight"] == "d72,embed"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"mixr": ("embed", "mlp")}, "dims names 'mixr', which fits no parameter.  Did you mean 'mixer'"),
        ({"mixer": ("embed",)}, r"dims says \('embed',\) of 'mixer'; mixer has the shape \[24, 56\]"),
        ({"mixer": ("embed", "embed")}, "each axis takes a name of its own"),
        ({"mixer": "embed"}, "dims maps 'mixer' to 'embed'; it takes a pattern"),
        ({"mixer": ("embed", 3)}, "dims maps 'mixer' to"),
        (
            {"mixer": ("a", "b"), "out.bias": ("a",)},
            "an axis of 24 in mixer and one of 100 in out.bias both 'a'",
        ),
    ],
)
def test_annotations_that_cannot_be_are_refused(said, message):
    """A misspelt pattern would leave its author with a guess."""
    with pytest.raises(InputError, match=message):
        dims("AnnotatedByMethod", said=said)


def test_an_attribute_dims_of_another_sort_is_no_annotation():
    """Many modules keep a list of widths under that name."""
    assert dims("OtherDims") == dims("Odd")


def test_frozen_parameters_have_neither_gradients_nor_states():
    """Counting them would ask for memory that nobody allocates."""
    params, grads, states = (set(rows("Odd", table)) for table in (Table.PARAMS, Table.GRADS, Table.STATES))
    assert params - grads == {"frozen.weight", "frozen.bias"}
    assert states == grads
    assert rows("Odd", Table.STATES)["mixer"].shape == (2, 24, 56)


def test_layers_of_two_stacks_are_numbered_on():
    """Two layers of one number would go to one stage."""
    with torch.device("meta"):
        from user_networks import Stacks

        stacks = layer_stacks(Stacks())
    assert stacks == {
        "encoder.0": 0,
        "encoder.1": 1,
        "decoder.0": 2,
        "decoder.1": 3,
        "decoder.2": 4,
    }


def test_layers_and_experts_hold_their_elements():
    """Stages are balanced by these, and experts spread by them."""
    layers = rows("MoeModel", Table.LAYERS)
    assert {name: (row.layer, row.kind) for name, row in layers.items()} == {
        "layers.0": (0, "moe"),
        "layers.1": (1, "moe"),
    }
    per_layer = 24 * (2 * 32 + 2 * 16) + 24 + 3 * 24 + 3 * 2 * 24 * 40
    assert {row.numel for row in layers.values()} == {per_layer}
    experts = rows("MoeModel", Table.EXPERTS)
    assert len(experts) == 2 * 3
    assert experts["layers.1.experts.2"].expert == 2
    assert {row.numel for row in experts.values()} == {2 * 24 * 40}
    assert {row.kind for row in rows("Gpt", Table.LAYERS).values()} == {"dense"}


def test_activations_are_what_the_parts_give_back():
    """Shapes from a real forward pass, with the dims of the weights that made them."""
    found = {
        name: (",".join(row.dims), row.shape, row.kind)
        for name, row in rows("Gpt", Table.ACTIVATIONS, layers=1).items()
    }
    assert found == {
        "transformer.wte": ("batch,sequence,embed", (2, 8, 32), "residual"),
        "transformer.wpe": ("d8,embed", (8, 32), "residual"),
        "transformer.h.0.ln_1": ("batch,sequence,embed", (2, 8, 32), "norm"),
        "transformer.h.0.attn.c_attn": ("batch,sequence,d96", (2, 8, 96), "attention"),
        "transformer.h.0.attn.c_proj": ("batch,sequence,embed", (2, 8, 32), "attention"),
        "transformer.h.0.ln_2": ("batch,sequence,embed", (2, 8, 32), "norm"),
        "transformer.h.0.mlp.c_fc": ("batch,sequence,mlp", (2, 8, 128), "linear"),
        "transformer.h.0.mlp.act": ("batch,sequence,mlp", (2, 8, 128), "linear"),
        "transformer.h.0.mlp.c_proj": ("batch,sequence,embed", (2, 8, 32), "linear"),
        "transformer.h.0": ("batch,sequence,embed", (2, 8, 32), "residual"),
        "transformer.ln_f": ("batch,sequence,embed", (2, 8, 32), "norm"),
        "lm_head": ("batch,sequence,vocab", (2, 8, 100), "head"),
    }
    assert {row.dtype for row in rows("Gpt", Table.ACTIVATIONS).values()} == {"bf16"}
    assert {row.layer for row in rows("Gpt", Table.ACTIVATIONS).values()} == {None, 0, 1}
    (note,) = tables("Gpt").notes
    assert "by functions, not by submodules" in note


def test_a_loss_in_place_of_logits_is_traced_as_well():
    """The other contract of a user's class."""
    assert set(rows("LossAndCount", Table.ACTIVATIONS)) == set(rows("Gpt", Table.ACTIVATIONS))


def test_logits_that_no_part_gives_have_a_row():
    """With a head that is a function of the embedding they are the largest activation of all."""
    preset = network("gpt-3m", layers=1, vocab=300)
    with torch.device("meta"):
        decoder = Decoder(preset, KeyedRandom())
    assert "head.weight" not in dict(decoder.named_parameters())
    found = rows_of_module(
        "trimtab.runtime.decoder:Decoder",
        arguments={"network": preset, "keyed": KeyedRandom()},
        batch=2,
        sequence=8,
        num_states=2,
        compute="fp32",
    )
    logits = next(s.row for s in found.rows if s.row.name == "logits")
    assert (logits.dims, logits.shape, logits.kind) == (("batch", "sequence", "vocab"), (2, 8, 300), "head")


def test_the_tables_of_a_preset_and_of_its_class_agree():
    """Parameters, gradients, states and layers of one network, told in two ways."""
    preset = network("llama-3m", layers=2, vocab=300)
    told = rows_of(preset, batch=2, sequence=8, num_states=2, compute="fp32")
    found = rows_of_module(
        "trimtab.runtime.decoder:Decoder",
        arguments={"network": preset, "keyed": KeyedRandom()},
        batch=2,
        sequence=8,
        num_states=2,
        compute="fp32",
    )
    for table in (Table.PARAMS, Table.GRADS, Table.STATES, Table.LAYERS):
        assert {s.row for s in found.rows if s.row.table is table} == {r for r in told if r.table is table}


def test_a_forward_pass_that_needs_values_is_noted():
    """Parameters are known all the same; that activations are missing must be said."""
    found = tables("Looks")
    assert {s.row.table for s in found.rows} >= {Table.PARAMS, Table.GRADS, Table.STATES}
    assert not [s for s in found.rows if s.row.table is Table.ACTIVATIONS]
    (note,) = found.notes
    assert note.startswith("activations: forward does not run without values: RuntimeError")


@pytest.mark.parametrize(
    ("class_name", "arguments", "message"),
    [
        ("ReadsInInit", {}, "cannot be built without values, on torch's meta device: RuntimeError"),
        ("Gpt", {"with": 3}, "cannot be built from model.args"),
        ("Got", {}, "holds no class 'Got'"),
    ],
)
def test_what_cannot_be_built_is_refused(class_name, arguments, message):
    """The error of torch alone names neither the class nor what to do."""
    with pytest.raises(InputError, match=message):
        tables(class_name, **arguments)


def test_no_memory_is_taken_for_values():
    """A network of a hundred billion parameters must be explained on a laptop."""
    width = 8192
    found = rows("Gpt", Table.LAYERS, width=width, layers=40)
    assert sum(row.numel for row in found.values()) == 40 * (12 * width**2 + 13 * width)
