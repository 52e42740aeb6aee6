"""One deadline, and what follows from it."""

from trimtab.spec import Detection, load_job
from trimtab.spec.detection import RATIOS

JOB = """\
run: quick
model: {preset: gpt-3m}
data: {text: python-stdlib}
train: {steps: 6}
"""


def load(*overrides: str, text: str = JOB):
    return load_job(text, source="q.yaml", overrides=overrides, read=lambda path: "")


def test_all_limits_follow_from_the_deadline() -> None:
    """A user who halves the deadline must not have to find eight other keys."""
    usual, half = Detection().limits_s(), Detection(deadline=30.0).limits_s()
    assert usual == {
        "heartbeat": 2.0,
        "progress": 60.0,
        "step": 600.0,
        "save": 300.0,
        "evaluation": 300.0,
        "first_step": 120.0,
        "start": 120.0,
        "park": 30.0,
    }
    assert half == {name: limit_s / 2 for name, limit_s in usual.items()}


def test_each_limit_can_be_set_alone() -> None:
    """And moves no other."""
    for name in RATIOS:
        said = Detection(**{name: 7.0})  # type: ignore[arg-type]
        assert said.limits_s() == {**Detection().limits_s(), name: 7.0}


def test_the_resolved_file_shows_what_follows_and_reads_back() -> None:
    """A resumed run with another deadline must follow it, not what followed from the old one."""
    loaded = load("fault_tolerance.detection.deadline=15s", "fault_tolerance.detection.save=1min")
    text = loaded.resolved_yaml()
    assert "heartbeat: auto  # default: 0.5 s, by deadline" in text
    assert "save: 60.0  # --set" in text
    again = load("fault_tolerance.detection.deadline=30s", text=text)
    assert again.job.fault_tolerance.detection.limit_s("heartbeat") == 1.0
    assert again.job.fault_tolerance.detection.limit_s("save") == 60.0
