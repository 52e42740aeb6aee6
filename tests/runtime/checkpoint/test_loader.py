from pathlib import Path

import pytest
import torch

from trimtab.ledger.manifests import CheckpointError
from trimtab.runtime.checkpoint.contents import open_contents
from trimtab.runtime.checkpoint.errors import StateMismatchError

STORED = Path(__file__).parent / "data" / "step-20"
STORED_PIECES = Path(__file__).parent / "data" / "pieces" / "step-30"


def test_state_comes_back_with_the_same_bits(kit, tmp_path):
    """A resumed run would not be the run that was stopped."""
    state = kit.state()
    state["exp_avg"]["layers.0.mlp.up.bias"] = torch.tensor([float("nan"), -0.0, 1e-45])
    loaded = kit.load(
        kit.write(tmp_path, 20, state, extra={"lr": 1e-3, "data": {"epoch": 2}}), expected=state
    )
    assert kit.same_bits(loaded.state, state)
    assert (loaded.step, loaded.extra) == (20, {"lr": 1e-3, "data": {"epoch": 2}})


def test_checkpoint_of_format_1_0_loads(kit):
    """S-CKP-18: an upgrade would refuse what users have. The stored folder is never regenerated."""
    loaded = kit.load(STORED, expected=kit.state())
    assert loaded.step == 20
    assert kit.same_bits(loaded.state, kit.state())
    assert loaded.extra == {"step": 20, "seed": 7, "lr_schedule": {"finished": 20}}


def test_checkpoint_of_format_2_0_loads_with_a_warning(kit):
    """S-CKP-18: pieces of two ranks, unsigned, as written before there were signatures. Never regenerated."""
    generator = torch.Generator().manual_seed(5)
    shapes = {"embedding.weight": (6, 4), "bias": (3,)}
    state = {
        part: {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        for part in ("parameters", "exp_avg")
    }
    loaded = kit.load(STORED_PIECES, expected=state)
    assert kit.same_bits(loaded.state, state)
    assert loaded.extra == {"step": 30, "seed": 7}
    with open_contents(STORED_PIECES, None) as contents:
        assert [warning.split(":")[0] for warning in contents.warnings] == ["step-30 is not signed"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("position", [0.0, 0.01, 0.2, 0.5, 0.8, 1.0])
def test_flipped_bit_is_refused_by_file(kit, tmp_path, name, position):
    """Other libraries load a damaged file without a word, and the run learns from garbage."""
    folder = kit.write(tmp_path, 20, kit.state())
    kit.flip_bit(folder / name, position)
    with pytest.raises(CheckpointError, match=f"^step-20/{name}: damaged: sha256"):
        kit.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_cut_file_is_refused_with_its_size(kit, tmp_path, name):
    """S-CKP-14: a volume that filled up leaves files that look like good ones."""
    folder = kit.write(tmp_path, 20, kit.state())
    body = (folder / name).read_bytes()
    (folder / name).write_bytes(body[:-1])
    with pytest.raises(CheckpointError, match=f"step-20/{name}: {len(body) - 1} bytes, expected {len(body)}"):
        kit.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "manifest.json"])
@pytest.mark.parametrize("agree", [False, True])
def test_planted_pickle_is_not_executed(kit, tmp_path, payload, name, agree):
    """S-SEC-03: whoever can put a file into a folder would run code as the user who resumes from it."""
    folder = kit.write(tmp_path, 20, kit.state())
    pickled, mark = payload
    if agree and name != "manifest.json":
        kit.rewrite(folder, name, pickled)
    else:
        (folder / name).write_bytes(pickled)
    with pytest.raises(CheckpointError, match=f"step-20/{name}: "):
        kit.load(folder)
    assert not mark.exists()


def test_planted_side_file_is_never_opened(kit, tmp_path, payload):
    """S-SEC-03: side files are where other systems keep their pickles."""
    folder = kit.write(tmp_path, 20, kit.state())
    pickled, mark = payload
    for name in ("rng.pkl", "optimizer.pt", ".metadata", "scheduler.bin"):
        (folder / name).write_bytes(pickled)
    assert kit.same_bits(kit.load(folder).state, kit.state())
    assert not mark.exists()


def test_names_and_shapes_that_do_not_fit_are_all_listed(kit, tmp_path):
    """S-CKP-17: a renamed layer would keep its random values and the load would report success."""
    folder = kit.write(tmp_path, 20, kit.state(parts=("parameters",)))
    wanted = kit.state(
        {"embedding.weight": (5, 8), "layers.0.mlp.up.weight": (3, 4), "layers.0.mlp.renamed.bias": (3,)},
        parts=("parameters",),
    )
    with pytest.raises(StateMismatchError) as caught:
        kit.load(folder, expected=wanted)
    assert caught.value.missing == ("parameters/layers.0.mlp.renamed.bias",)
    assert caught.value.extra == ("parameters/layers.0.mlp.up.bias",)
    assert caught.value.mismatched == (("parameters/embedding.weight", (5, 4), (5, 8)),)
    for name in ("renamed.bias", "up.bias", r"embedding.weight: found \(5, 4\), expected \(5, 8\)"):
        assert caught.match(name)


def test_missing_optimizer_state_is_named(kit, tmp_path):
    """S-CKP-16: the first update after a resume would start from empty moments."""
    folder = kit.write(tmp_path, 20, kit.state(parts=("parameters", "exp_avg")))
    with pytest.raises(StateMismatchError, match=r"missing: exp_avg_sq/embedding\.weight"):
        kit.load(folder, expected=kit.state())


def test_moments_follow_the_name_not_the_position(kit, tmp_path):
    """S-CKP-24: with groups in another order, moments would go to a parameter of equal shape."""
    shapes = {"a.weight": (2, 2), "b.weight": (2, 2), "c.weight": (2, 2)}
    state = kit.state(shapes)
    reordered = {part: dict(reversed(tensors.items())) for part, tensors in reversed(state.items())}
    loaded = kit.load(kit.write(tmp_path, 20, reordered), expected=state)
    assert kit.same_bits(loaded.state, state)


def test_loaded_state_can_be_written_to(kit, tmp_path):
    """The optimizer updates moments in place; the file must not change with them."""
    folder = kit.write(tmp_path, 20, kit.state())
    loaded = kit.load(folder)
    for tensors in loaded.state.values():
        for tensor in tensors.values():
            tensor.zero_()
    assert kit.same_bits(kit.load(folder).state, kit.state())
