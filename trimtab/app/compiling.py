"""From a job that was read to its physical plan."""

from trimtab.app.errors import JobReadError
from trimtab.app.job_reading import refuse_script
from trimtab.app.losses import rule_on_loss
from trimtab.app.machines import MachineFacts, find_machine
from trimtab.catalog import THIS_MACHINE, Cluster, ClusterError, Machine, UnknownNameError, cluster
from trimtab.plan import training
from trimtab.plan.compiling import compile_program
from trimtab.plan.layout import network_of
from trimtab.plan.physical import Plan
from trimtab.plan.training import Training
from trimtab.spec import LoadedJob


def compiled(loaded: LoadedJob, machine: MachineFacts | None = None) -> Plan:
    """The physical plan of a job, verified.

    Args:
        loaded: Read and checked.
        machine: Where it stands if the job names no cluster; found out if None.

    Raises: StrategyError with everything that the formulas cannot mean, at its line of the job file;
        JobReadError at the line of a cluster that is not known, of an ``on_loss`` that the layout cannot give, and of
        a class of the user's own, whose shapes only torch can tell.
    """
    plan = compile_program(
        loaded.program,
        training_of(loaded),
        mesh=loaded.layout.mesh,
        cluster=cluster_of(loaded, machine),
    )
    rule_on_loss(loaded, plan)
    return plan


def training_of(loaded: LoadedJob) -> Training:
    """What a plan needs to know of a job besides its strategy.

    Raises: JobReadError at the line of a class of the user's own, whose shapes only torch can tell.
    """
    job = loaded.job
    network = network_of(job)
    if network is None:
        refuse_script(loaded, verb="a plan")
        origin = loaded.origins["model.module"]
        raise JobReadError(
            f"{origin}  the shapes of {job.model.module} are known to torch only: there is no plan"
        )
    return training.training_of(job, network)


def cluster_of(loaded: LoadedJob, machine: MachineFacts | None = None) -> Cluster:
    """The cluster that a job names, else the machine that the command runs on.

    Raises: JobReadError at the line that names a cluster which the catalog does not have, or cannot make.
    """
    orchestration = loaded.job.orchestration
    if orchestration.cluster not in (None, THIS_MACHINE):
        try:
            return cluster(orchestration.cluster)
        except (UnknownNameError, ClusterError) as error:
            raise JobReadError(f"{loaded.origins['orchestration.cluster']}  {error}") from error
    facts = machine or find_machine()
    return cluster(
        THIS_MACHINE,
        machine=Machine(
            num_devices=orchestration.devices,
            cores=facts.cores,
            memory_bytes=facts.memory_bytes,
            has_accelerator=facts.has_accelerator,
        ),
    )
