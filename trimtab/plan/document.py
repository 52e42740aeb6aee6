"""A physical plan as plain data, whole: what another program needs to check or to run it."""

from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.plan.physical import Plan, Traffic
from trimtab.plan.placements import Placements
from trimtab.plan.program import Block, Operator, Parameter, Transfer, Value

VERSION = 1


def plan_document(plan: Plan) -> dict[str, Any]:
    """Mesh, network, work, parameters, programs and messages of a plan; every value is plain JSON."""
    network, work, pipeline = plan.network, plan.work, plan.pipeline
    return {
        "version": VERSION,
        "mesh": [[axis, size] for axis, size in plan.mesh.axes],
        "nodes": [device.node for device in plan.bound.devices],
        "network": {
            "name": network.name,
            "layers": network.layers,
            "embed": network.embed,
            "heads": network.heads,
            "kv_heads": network.kv_heads,
            "head_size": network.head_size,
            "mlp": network.mlp,
            "vocab": network.vocab,
            "context": network.context,
            "experts": network.experts,
            "top_k": network.top_k,
            "tied": network.tied,
            "dropout": network.dropout,
        },
        "work": {
            "batch": work.batch,
            "sequence": work.sequence,
            "replicas": work.replicas,
            "parts": work.num_parts,
            "has_fixed_order": work.has_fixed_order,
            "microbatch": work.microbatch,
            "microbatches": work.microbatches,
        },
        "pipeline": {
            "axis": pipeline.axis,
            "schedule": pipeline.schedule.value,
            "stage_of_layer": list(pipeline.stage_of_layer),
            "rank_of_stage": list(pipeline.rank_of_stage),
        },
        "parameters": [_parameter(parameter) for parameter in plan.parameters.values()],
        "blocks": [_block(block) for block in plan.blocks],
        "update": {
            "values": _values(plan.update.values),
            "operators": _operators(plan.update.operators),
            "results": dict(plan.update.results),
        },
        "traffic": [_traffic(traffic) for traffic in plan.traffic],
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "dims": list(parameter.dims),
        "shape": list(parameter.shape),
        "layer": parameter.layer,
        "kind": parameter.kind,
        "stages": list(parameter.stages),
        "computed": _placements(parameter.computed),
        "stored": {table: _placements(placements) for table, placements in parameter.stored.items()},
        "dtypes": dict(parameter.dtypes),
        "num_states": parameter.num_states,
        "offloaded": list(parameter.offloaded),
    }


def _block(block: Block) -> dict[str, Any]:
    return {
        "name": block.name,
        "layers": list(block.layers),
        "values": _values(block.values),
        "gathers": _operators(block.gathers),
        "forward": _operators(block.forward),
        "recompute": _operators(block.recompute),
        "backward": _operators(block.backward),
        "kept": list(block.kept),
        "offloaded": list(block.offloaded),
        "result": block.result,
        "gradient": block.gradient,
    }


def _values(values: Mapping[str, Value]) -> dict[str, Any]:
    return {
        name: {
            "dims": list(value.dims),
            "shape": list(value.shape),
            "dtype": value.dtype,
            "placements": _placements(value.placements),
        }
        for name, value in values.items()
    }


def _placements(placements: Placements) -> list[list[str | None]]:
    """Axes in cutting order, each with kind and dim; what is not listed is replicated."""
    return [[axis, placement.kind.value, placement.dim] for axis, placement in placements]


def _operators(operators: Iterable[Operator]) -> list[dict[str, Any]]:
    return [_operator(operator) for operator in operators]


def _operator(operator: Operator) -> dict[str, Any]:
    return {
        "kind": operator.kind.value,
        "inputs": list(operator.inputs),
        "outputs": list(operator.outputs),
        "parameters": list(operator.parameters),
        "because": str(operator.because),
        "transfer": _transfer(operator.transfer) if operator.transfer else None,
        "dim_from": operator.dim_from,
        "dim_to": operator.dim_to,
        "cuts": list(operator.cuts),
        "every": operator.every,
        "call": operator.call,
        "at_once": operator.at_once,
        "variants": [[list(groups), _transfer(transfer)] for groups, transfer in operator.variants],
    }


def _transfer(transfer: Transfer) -> dict[str, Any]:
    return {
        "axes": list(transfer.axes),
        "route": transfer.route,
        "levels": list(transfer.levels),
        "wire": transfer.wire,
        "compress": transfer.compress,
        "compress_argument": transfer.compress_argument,
        "operation": transfer.operation,
        "is_sealed": transfer.is_sealed,
        "stages": list(transfer.stages),
        "bucket_bytes": transfer.bucket_bytes,
    }


def _traffic(traffic: Traffic) -> dict[str, Any]:
    ranks = sorted({rank for group in traffic.groups for rank in group})
    return {
        "block": traffic.block,
        "phase": traffic.phase.value,
        "kind": traffic.operator.kind.value,
        "tensors": list(traffic.tensors),
        "axes": list(traffic.transfer.axes),
        "route": traffic.transfer.route,
        "runs": {str(place): count for place, count in traffic.runs.items()},
        "sent_bytes": {str(rank): traffic.sent_bytes(rank) for rank in ranks},
    }
