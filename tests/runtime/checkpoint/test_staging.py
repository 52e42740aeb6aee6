import os

import pytest
import torch

from trimtab.runtime.checkpoint.staging import Layout, StagingBuffer


def _image(buffer, name):
    (file,) = [file for file in buffer.layout.files if file.name == name]
    return os.pread(buffer.fd, file.size_bytes, file.offset_bytes)


def test_memory_holds_the_exact_bytes_of_the_files(kit):
    """The writer knows nothing of tensors: what stands here is what is on disk."""
    state = kit.state()
    buffer = StagingBuffer(kit.state(seed=1))
    buffer.fill(state)
    for name, body in kit.contents(state).items():
        assert _image(buffer, name) == body
    buffer.close()


def test_tensors_of_any_layout_are_copied_by_value(kit):
    """A transposed view would be saved in the order of its memory."""
    state = kit.state()
    name = "embedding.weight"
    state["parameters"][name] = torch.arange(20.0).view(4, 5).t()
    buffer = StagingBuffer(state)
    buffer.fill(state)
    assert _image(buffer, "model.safetensors") == kit.contents(state)["model.safetensors"]
    buffer.close()


def test_another_shape_is_never_broadcast(kit):
    """``copy_`` repeats a row silently: the checkpoint would be whole and wrong."""
    state = kit.state()
    buffer = StagingBuffer(state)
    state["exp_avg"]["embedding.weight"] = torch.zeros(4)
    with pytest.raises(AssertionError):
        buffer.fill(state)
    buffer.close()


def test_parts_count_what_they_hold(kit):
    """S-CKP-16: without counts an emptied part cannot be noticed."""
    layout = Layout.of(kit.state())
    assert [(p.name, p.file, p.num_tensors, p.size_bytes) for p in layout.parts] == [
        ("parameters", "model.safetensors", 3, 140),
        ("exp_avg", "optimizer.safetensors", 3, 140),
        ("exp_avg_sq", "optimizer.safetensors", 3, 140),
    ]


def test_state_that_cannot_be_saved_is_refused_at_the_start(kit):
    """S-CKP-16: the first save may be an hour away."""
    with pytest.raises(ValueError, match="part 'exp_avg' of the state has no tensors"):
        Layout.of(kit.state() | {"exp_avg": {}})
    with pytest.raises(ValueError, match=r"parameters/a is torch\.bfloat16, expected torch\.float32"):
        Layout.of({"parameters": {"a": torch.zeros(2, dtype=torch.bfloat16)}})
    with pytest.raises(ValueError, match="without parts"):
        Layout.of({})
