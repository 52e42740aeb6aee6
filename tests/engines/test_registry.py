from trimtab.engines import ENGINES, load_engine
from trimtab.spec import Engine


def test_every_engine_that_a_job_can_name_is_there():
    """A name that the job file accepts and nobody answers to would fail after the run's folder was made."""
    assert set(ENGINES) == {engine.value for engine in Engine}
    assert {load_engine(name).name for name in ENGINES} == set(ENGINES)
