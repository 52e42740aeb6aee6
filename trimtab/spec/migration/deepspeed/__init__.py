"""DeepSpeed: its JSON configuration as a job, and a job as its JSON."""

from trimtab.spec.migration.deepspeed.importing import read_deepspeed
from trimtab.spec.migration.deepspeed.writing import write_deepspeed

__all__ = ["read_deepspeed", "write_deepspeed"]
