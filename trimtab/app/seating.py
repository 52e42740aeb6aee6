"""Which layouts may a run go through as its ranks come and go?"""

from dataclasses import replace

from trimtab.app.machines import MachineFacts
from trimtab.catalog import THIS_MACHINE, Machine, cluster
from trimtab.plan.compiling import compile_program
from trimtab.plan.formations import Formations
from trimtab.plan.layout import network_of, trains_as_replicas
from trimtab.plan.resizing import units_of
from trimtab.plan.training import training_of
from trimtab.policy import Seating
from trimtab.spec import Job, Program, resolve_mesh


def seating_of(job: Job, program: Program, machine: MachineFacts) -> Seating:
    """What the runtime can form of the living ranks of a job.

    Replicas: any number. A plan: those of its layouts that keep its bits. A class of the user's own whose tensors are
    stored in pieces: all of its ranks or none.

    Raises: StrategyError for formulas that mean nothing on the job's devices.
    """
    devices = job.orchestration.devices
    if job.script is not None or trains_as_replicas(job, program):
        return Seating(most=devices)
    network = network_of(job)
    if network is None:
        return Seating(layouts=((tuple(range(devices)),),), most=devices)
    stand = cluster(
        job.orchestration.cluster or THIS_MACHINE,
        machine=Machine(
            num_devices=devices,
            cores=machine.cores,
            memory_bytes=machine.memory_bytes,
            has_accelerator=machine.has_accelerator,
        ),
    )
    training = replace(training_of(job, network), clips=True)
    plan = compile_program(program, training, mesh=resolve_mesh(program, devices), cluster=stand)
    found = Formations(program, training, plan=plan, cluster=stand)
    return Seating(layouts=tuple(units_of(smaller) for smaller in found.values()), most=devices)
