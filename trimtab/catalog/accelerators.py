"""Devices to train on: peaks, memory, links, power."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from trimtab.catalog.errors import UnknownNameError
from trimtab.catalog.tables import csv_rows
from trimtab.terms import ComputeType

_TERA, _GIGA, _GIB = 1e12, 1e9, 2**30


class Verified(StrEnum):
    """Whether the figures of a row were compared with the source that they name."""

    YES = "yes"
    PARTLY = "partly"  # the source or note of the row says which were not
    NO = "no"


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """One kind of device. What its source does not say is None."""

    name: str
    vendor: str
    year: int | None
    """Year of its release."""
    fp32_flops_per_s: float | None
    """Peak in plain fp32, without TF32."""
    bf16_flops_per_s: float | None
    """Peak of dense matrix products, as are the next two; twice these figures in advertisements count
    zeros that are skipped."""
    fp16_flops_per_s: float | None
    fp8_flops_per_s: float | None
    achievable_bf16_flops_per_s: float | None
    """Best matrix product that was measured, over all shapes; as is the next."""
    achievable_fp8_flops_per_s: float | None
    memory_bytes: int
    memory_bytes_per_s: float | None
    peer_bytes_per_s: float | None
    """To other devices of its node, all links together, in one direction."""
    devices_per_node: int | None
    """As usually built."""
    island_devices: int | None
    """That share the links of ``peer_bytes_per_s``, where they are more than a node: 72 of GB200 and GB300 NVL72."""
    multiprocessors: int | None
    """That compute a tile of a matrix product each, at once: streaming multiprocessors, compute units. Of NVIDIA's devices
    as in its architecture papers, of the others as remembered."""
    inter_node_bytes_per_s: float | None
    """One device's part of its node's network, in one direction, as usually built."""
    host_bytes_per_s: float | None
    """To the memory of its host, in one direction: PCI Express over 16 lanes, by the generation that the device is built
    for. 15.8, 31.5 and 63 GB/s for generations 3, 4 and 5 are the rates of the standard less its encoding; that a device
    has such a link was remembered, not looked up. None for devices whose link is another one."""
    power_w: float | None
    """Design power."""
    verified: Verified
    source: str
    """Where the figures come from."""
    note: str

    def peak_flops_per_s(self, compute: ComputeType) -> float | None:
        """The declared peak for matrix products in this type; utilisation is measured against it."""
        return {
            ComputeType.FP32: self.fp32_flops_per_s,
            ComputeType.BF16: self.bf16_flops_per_s,
        }[compute]


def accelerator_names() -> tuple[str, ...]:
    """The devices that ``accelerator`` knows."""
    return tuple(_accelerators())


def accelerator(name: str) -> Accelerator:
    """The device called ``name``, such as ``H100-SXM-80GB``.

    Raises: UnknownNameError, with the nearest name.
    """
    known = _accelerators()
    if name not in known:
        raise UnknownNameError("accelerator", name, known)
    return known[name]


@cache
def _accelerators() -> Mapping[str, Accelerator]:
    return {row["name"]: _read(row) for row in csv_rows("accelerators.csv")}


def _read(row: Mapping[str, str]) -> Accelerator:
    return Accelerator(
        name=row["name"],
        vendor=row["vendor"],
        year=_count(row["year"]),
        fp32_flops_per_s=_rate(row["fp32_tflops"], _TERA),
        bf16_flops_per_s=_rate(row["bf16_dense_tflops"], _TERA),
        fp16_flops_per_s=_rate(row["fp16_dense_tflops"], _TERA),
        fp8_flops_per_s=_rate(row["fp8_dense_tflops"], _TERA),
        achievable_bf16_flops_per_s=_rate(row["mamf_bf16_tflops"], _TERA),
        achievable_fp8_flops_per_s=_rate(row["mamf_fp8_tflops"], _TERA),
        memory_bytes=int(row["mem_gib"]) * _GIB,
        memory_bytes_per_s=_rate(row["mem_gbs"], _GIGA),
        peer_bytes_per_s=_rate(row["intra_node_gbs_unidir"], _GIGA),
        devices_per_node=_count(row["accel_per_node"]),
        island_devices=_count(row["island_devices"]),
        multiprocessors=_count(row["multiprocessors"]),
        inter_node_bytes_per_s=_rate(row["inter_node_gbs_per_accel"], _GIGA),
        host_bytes_per_s=_rate(row["host_gbs_unidir"], _GIGA),
        power_w=_rate(row["tdp_w"], 1.0),
        verified=Verified(row["verified"]),
        source=row["source"],
        note=row["note"],
    )


def _count(text: str) -> int | None:
    return int(text) if text else None


def _rate(text: str, unit: float) -> float | None:
    return float(text) * unit if text else None
