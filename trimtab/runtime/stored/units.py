"""Which parameters of a user's class are gathered together?"""

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from trimtab.catalog import Cluster
from trimtab.plan.module_storage import ROOT, ModuleStorage, storage_of
from trimtab.plan.training import num_states
from trimtab.runtime.dim_inference import layer_stacks
from trimtab.runtime.models import build_class
from trimtab.runtime.module_rows import rows_of_module
from trimtab.spec import Job, Program, resolve_mesh


def storage_of_class(job: Job, program: Program, *, cluster: Cluster) -> ModuleStorage:
    """How the class of a job is stored, without a single value of it.

    Raises: InputError for a class that cannot be built so; StrategyError for formulas that do not fit its tensors.
    """
    named = str(job.model.module)
    tables = rows_of_module(
        named,
        arguments=job.model.args,
        batch=int(job.train.microbatch),
        sequence=job.data.sequence,
        num_states=num_states(job.train.optimizer),
        compute=job.train.compute.value,
    )
    with torch.device("meta"):
        module = build_class(named, arguments=job.model.args, seed=0)
    return storage_of(
        program,
        (sourced.row for sourced in tables.rows),
        mesh=resolve_mesh(program, job.orchestration.devices),
        cluster=cluster,
        units=units_of(module),
    )


def units_of(module: nn.Module) -> Mapping[str, str]:
    """For each parameter the path of its layer; ``ROOT`` for what stands outside of layers or is used by several."""
    layers = tuple(layer_stacks(module))
    owners: dict[int, set[str]] = {}
    for path, child in module.named_modules(remove_duplicate=False):
        unit = next((layer for layer in layers if f"{path}.".startswith(f"{layer}.")), ROOT)
        for parameter in child.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(unit)
    return {name: _only(owners[id(parameter)]) for name, parameter in module.named_parameters()}


def _only(units: set[str]) -> str:
    return next(iter(units)) if len(units) == 1 else ROOT


def users_of(module: nn.Module, unit: str) -> Iterator[nn.Module]:
    """The modules of a layer whose forward may use its parameters: the layer, and every part that has some itself."""
    layer = module.get_submodule(unit)
    for part in layer.modules():
        if part is layer or next(part.parameters(recurse=False), None) is not None:
            yield part
