"""What a probe tells of constants: those that it measured are known, those of its real steps are fitted."""

from dataclasses import replace

import numpy as np

from trimtab.catalog import Probe
from trimtab.cost.calibration.calibrated import Calibrated, calibrate, step_seconds
from trimtab.cost.calibration.fitting import Belief
from trimtab.cost.calibration.rows import MeasuredRun

_MEASURED_SPREAD = 0.3
"""Standard deviation of the logarithm of a constant that was measured apart from a network."""

_HEAD_SIZE = 64
"""Of the attention that a probe times."""

_ANYTHING_SPREAD = 2.0
"""The same of one that may be ten times what it is elsewhere."""

_EXPOSED = ("stored_exposed", "tensor_exposed", "data_exposed", "context_exposed")
"""What an executor hides that runs operator by operator, as on a host without accelerators: nothing."""


def belief_with(belief: Belief, probe: Probe) -> Belief:
    """What is believed of this machine's constants before its real steps."""
    if probe.num_devices > 1:  # one alone has nobody to talk to, and measured no such thing
        belief = _known(belief, "collective_s", probe.start_s)
        belief = _known(belief, "hop_s", probe.start_s / 2)
    belief = _known(belief, "kernel_s", probe.kernel_s)
    belief = _known(belief, "attention_share", _attention_share(probe))
    for name in _EXPOSED:
        belief = _known(belief, name, 1.0)
    return _loose(belief, "microbatch_s")


def calibrated_on(belief: Belief, probe: Probe) -> Calibrated:
    """Time on the machine of a probe."""
    known = belief_with(belief, probe)
    runs = [
        MeasuredRun(
            row_id=run.name,
            source="probe",
            labels=("trimtab", probe.compute, "probed"),
            problem="",
            columns=run.columns,
            step_s=run.step_s,
            peak_bytes=None,
            capacity_bytes=float(probe.memory_bytes),
            is_out_of_memory=False,
        )
        for run in probe.runs
    ]
    return calibrate(
        step_seconds, runs, np.asarray([run.step_s for run in probe.runs], dtype=np.float64), known
    )


def _attention_share(probe: Probe) -> float:
    """As the closed form has it: the rate is the roof times this, times the head's size over itself and sixteen."""
    rate, roof = min(probe.attention_flops_per_s), min(probe.flops_per_s)
    return rate / roof * (_HEAD_SIZE + 16) / _HEAD_SIZE


def _loose(belief: Belief, name: str) -> Belief:
    """With one constant left to the real steps: what an executor written in Python takes of the host differs by hosts."""
    place = next(i for i, constant in enumerate(belief.constants) if constant.name == name)
    spreads = belief.spreads.copy()
    spreads[place] = _ANYTHING_SPREAD
    return replace(belief, spreads=spreads)


def _known(belief: Belief, name: str, value: float) -> Belief:
    """With one constant measured; its bounds widen where the machine lies outside of what is usual."""
    place = next(i for i, constant in enumerate(belief.constants) if constant.name == name)
    constants, means, spreads = list(belief.constants), belief.means.copy(), belief.spreads.copy()
    old = constants[place]
    constants[place] = replace(old, low=min(old.low, value / 10), high=max(old.high, value * 10))
    means[place], spreads[place] = np.log(value), _MEASURED_SPREAD
    return Belief(constants=tuple(constants), means=means, spreads=spreads)
