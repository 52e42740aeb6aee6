import pytest

from trimtab.catalog import UnknownNameError, accelerator, accelerator_names
from trimtab.terms import ComputeType


def test_units_are_converted_once() -> None:
    """A factor of 1000 or 1024 in the wrong place makes every plan wrong by it."""
    h100 = accelerator("H100-SXM-80GB")
    assert h100.bf16_flops_per_s == 989e12
    assert h100.achievable_bf16_flops_per_s == 794.5e12
    assert h100.memory_bytes == 80 * 2**30
    assert h100.memory_bytes_per_s == 3350e9
    assert h100.peer_bytes_per_s == 450e9
    assert h100.inter_node_bytes_per_s == 50e9
    assert h100.power_w == 700
    assert (h100.year, h100.devices_per_node) == (2022, 8)


def test_the_peak_depends_on_the_type() -> None:
    """Utilisation of an fp32 run against the bf16 peak would look sixteen times too bad."""
    a100 = accelerator("A100-SXM-80GB")
    assert a100.peak_flops_per_s(ComputeType.BF16) == 312e12
    assert a100.peak_flops_per_s(ComputeType.FP32) == 19.5e12


def test_what_a_source_does_not_say_is_none() -> None:
    """An invented zero would be read as a measurement."""
    v100 = accelerator("V100-SXM-32GB")
    assert v100.bf16_flops_per_s is None
    assert v100.peak_flops_per_s(ComputeType.FP32) is None
    assert accelerator("GB200-186GB").inter_node_bytes_per_s is None
    assert accelerator("Trainium2").power_w is None


@pytest.mark.parametrize("name", accelerator_names())
def test_every_row_parses_states_its_source_and_is_possible(name: str) -> None:
    """A row that does not parse, or whose best measurement passes its peak, would stop a plan for others."""
    device = accelerator(name)
    assert device.source
    assert device.memory_bytes > 0
    peaks = [
        device.fp32_flops_per_s,
        device.bf16_flops_per_s,
        device.fp16_flops_per_s,
        device.fp8_flops_per_s,
    ]
    assert any(peaks)
    for peak, best in (
        (device.bf16_flops_per_s, device.achievable_bf16_flops_per_s),
        (device.fp8_flops_per_s, device.achievable_fp8_flops_per_s),
    ):
        assert best is None or (peak is not None and best <= peak)


def test_all_thirty_devices_have_names_of_their_own() -> None:
    """Of two rows with one name the first would silently be lost."""
    assert len(set(accelerator_names())) == len(accelerator_names()) == 30


@pytest.mark.parametrize(
    ("typed", "meant"), [("h100-sxm-80gb", "H100-SXM-80GB"), ("A100", "A100-PCIe-40GB"), ("MI300", "MI300X")]
)
def test_a_short_or_misspelt_name_gets_the_nearest_one(typed: str, meant: str) -> None:
    """People say A100; the catalog has four of them and must say so."""
    with pytest.raises(UnknownNameError, match=f"unknown accelerator '{typed}'(.|\n)*Did you mean '{meant}'"):
        accelerator(typed)
