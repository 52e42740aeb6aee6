import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.catalog import Network, network, network_names
from trimtab.plan.tables import BYTES_OF, COLUMNS, Row, Table, rows_of

Figures = dict[str, tuple[tuple[str, ...], tuple[int, ...], str]]


def rows(of: Network, table: Table, **changes: int | str) -> list[Row]:
    settings = {"batch": 2, "sequence": 8, "num_states": 2, "compute": "bf16"} | changes
    return [row for row in rows_of(of, **settings) if row.table is table]  # type: ignore[arg-type]


def figures(found: list[Row]) -> Figures:
    return {row.name: (row.dims, row.shape, row.kind) for row in found}


def test_params_are_the_networks_tensors() -> None:
    """A statement that names a tensor must find it under the name that the checkpoint has."""
    llama = network("llama-3m")
    found = rows(llama, Table.PARAMS)
    assert [(r.name, r.layer, r.kind, r.dims, r.shape) for r in found] == [
        (t.name, t.layer, t.kind.value, t.dims, t.shape) for t in llama.tensors()
    ]
    assert {row.dtype for row in found} == {"fp32"}


def test_gradients_and_states_have_the_names_of_their_parameters() -> None:
    """Grads and states are laid out as their parameter: the name is how it is found."""
    gpt = network("gpt-3m", layers=1)
    params, grads, states = (rows(gpt, table) for table in (Table.PARAMS, Table.GRADS, Table.STATES))
    assert [(g.name, g.dims, g.shape) for g in grads] == [(p.name, p.dims, p.shape) for p in params]
    assert [(s.name, s.dims, s.shape) for s in states] == [
        (p.name, ("state", *p.dims), (2, *p.shape)) for p in params
    ]
    assert sum(row.numel for row in states) == 2 * gpt.num_parameters()


def test_an_optimizer_that_keeps_nothing_has_no_states() -> None:
    """A row of no elements would let `OFFLOAD states` pass as if it did something."""
    assert rows(network("gpt-3m"), Table.STATES, num_states=0) == []


def test_activations_of_a_dense_network_with_a_gate() -> None:
    """The order of computation, each with the dims that statements split."""
    bse, bsm = ("batch", "sequence", "embed"), ("batch", "sequence", "mlp")
    found = figures(rows(network("llama-3m", layers=1), Table.ACTIVATIONS))
    assert found == {
        "embedding": (bse, (2, 8, 256), "residual"),
        "layers.0.attention_norm": (bse, (2, 8, 256), "norm"),
        "layers.0.attention.q": (("batch", "sequence", "heads"), (2, 8, 256), "attention"),
        "layers.0.attention.k": (("batch", "sequence", "kv_heads"), (2, 8, 64), "attention"),
        "layers.0.attention.v": (("batch", "sequence", "kv_heads"), (2, 8, 64), "attention"),
        "layers.0.attention.out": (("batch", "sequence", "heads"), (2, 8, 256), "attention"),
        "layers.0.attention_residual": (bse, (2, 8, 256), "residual"),
        "layers.0.mlp_norm": (bse, (2, 8, 256), "norm"),
        "layers.0.mlp.up": (bsm, (2, 8, 768), "linear"),
        "layers.0.mlp.gate": (bsm, (2, 8, 768), "linear"),
        "layers.0.mlp.hidden": (bsm, (2, 8, 768), "linear"),
        "layers.0.mlp_residual": (bse, (2, 8, 256), "residual"),
        "final_norm": (bse, (2, 8, 256), "norm"),
        "logits": (("batch", "sequence", "vocab"), (2, 8, 256), "head"),
    }
    assert list(found)[:2] == ["embedding", "layers.0.attention_norm"]
    assert list(found)[-2:] == ["final_norm", "logits"]


def test_activations_of_experts_stand_in_slots() -> None:
    """Memory of a dense MLP in place of the slots is what broke estimates for experts."""
    found = figures(rows(network("moe-3m", layers=1), Table.ACTIVATIONS, batch=3, sequence=7))
    slots = 6  # 3 * 7 tokens to 2 of 8 experts: 5.25, rounded up
    names = [name for name in found if "expert" in name or "router" in name or ".mlp" in name]
    assert {name: found[name] for name in names} == {
        "layers.0.mlp_norm": (("batch", "sequence", "embed"), (3, 7, 256), "norm"),
        "layers.0.router": (("batch", "sequence", "routes"), (3, 7, 8), "router"),
        "layers.0.experts.in": (("experts", "slots", "embed"), (8, slots, 256), "expert"),
        "layers.0.experts.up": (("experts", "slots", "mlp"), (8, slots, 96), "expert"),
        "layers.0.experts.gate": (("experts", "slots", "mlp"), (8, slots, 96), "expert"),
        "layers.0.experts.hidden": (("experts", "slots", "mlp"), (8, slots, 96), "expert"),
        "layers.0.experts.out": (("experts", "slots", "embed"), (8, slots, 256), "expert"),
        "layers.0.mlp_residual": (("batch", "sequence", "embed"), (3, 7, 256), "residual"),
    }


def test_an_mlp_without_a_gate_has_no_gate() -> None:
    """An activation that is never made must not count as memory."""
    for preset in (network("gpt-3m"), network("gpt-3m", experts=4, top_k=1)):
        assert not [row.name for row in rows(preset, Table.ACTIVATIONS) if "gate" in row.name]


def test_activations_have_the_type_of_the_computation_and_weights_their_own() -> None:
    """Bytes of bf16 activations counted as fp32 would double the memory."""
    by_table = {table: {row.dtype for row in rows(network("moe-3m"), table)} for table in Table}
    assert by_table.pop(Table.ACTIVATIONS) == {"bf16"}
    assert set.union(*by_table.values()) == {"fp32"}


@pytest.mark.parametrize(("preset", "kind"), [("llama-3m", "dense"), ("moe-3m", "moe")])
def test_layers_hold_the_elements_of_their_parameters(preset: str, kind: str) -> None:
    """Stages are balanced by parameters: what no layer holds stands outside all of them."""
    of = network(preset)
    layers = rows(of, Table.LAYERS)
    assert [(row.name, row.layer, row.kind) for row in layers] == [
        (f"layers.{layer}", layer, kind) for layer in range(4)
    ]
    outside = sum(tensor.numel for tensor in of.tensors() if tensor.layer is None)
    assert sum(row.numel for row in layers) + outside == of.num_parameters()


def test_every_expert_of_every_layer_has_a_row() -> None:
    """`expert` is a column there and nowhere else."""
    moe = network("moe-3m", layers=2)
    experts = rows(moe, Table.EXPERTS)
    assert [(row.name, row.layer, row.expert) for row in experts][7:9] == [
        ("layers.0.experts.7", 0, 7),
        ("layers.1.experts.0", 1, 0),
    ]
    assert {row.numel for row in experts} == {3 * 96 * 256}
    assert len(experts) == 2 * 8
    everything = rows_of(moe, batch=1, sequence=1, num_states=1, compute="fp32")
    assert {row.table for row in everything if row.expert is not None} == {Table.EXPERTS}
    assert rows(network("llama-3m"), Table.EXPERTS) == []


def test_values_are_what_where_compares() -> None:
    """Text, numbers and NULL, as the language's page says."""
    row = next(row for row in rows(network("llama-3m"), Table.PARAMS) if row.name == "head.weight")
    assert {column: row.value(column) for column in COLUMNS} == {
        "name": "head.weight",
        "layer": None,
        "kind": "head",
        "dims": "vocab,embed",
        "shape": "256,256",
        "numel": 65536,
        "bytes": 262144,
        "dtype": "fp32",
        "stage": None,
        "expert": None,
    }
    with pytest.raises(KeyError):
        row.value("table")


@pytest.mark.parametrize("name", network_names())
def test_rows_of_every_preset_hold_together(name: str) -> None:
    """A network that is listed can be explained."""
    found = rows_of(network(name), batch=1, sequence=16, num_states=2, compute="bf16")
    assert len({(row.table, row.name) for row in found}) == len(found)
    assert all(len(row.dims) == len(row.shape) for row in found)
    assert all(row.numel > 0 for row in found)


@given(
    batch=st.integers(1, 64),
    sequence=st.integers(1, 512),
    num_states=st.integers(0, 3),
    compute=st.sampled_from(sorted(BYTES_OF)),
    top_k=st.integers(1, 8),
)
def test_bytes_are_the_elements_in_their_type(
    batch: int, sequence: int, num_states: int, compute: str, top_k: int
) -> None:
    """Slots hold every token as often as it is sent, and less than one row an expert more."""
    moe = network("moe-3m", layers=1, top_k=top_k)
    found = rows_of(moe, batch=batch, sequence=sequence, num_states=num_states, compute=compute)
    assert all(row.bytes == row.numel * BYTES_OF[row.dtype] for row in found)
    slots = next(row for row in found if row.name == "layers.0.experts.in").shape[:2]
    sent = batch * sequence * top_k
    assert sent <= slots[0] * slots[1] < sent + 8
