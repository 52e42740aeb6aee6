"""DeepSpeed: its JSON configuration as a job."""

from trimtab.spec.migration.deepspeed.importing import read_deepspeed

__all__ = ["read_deepspeed"]
