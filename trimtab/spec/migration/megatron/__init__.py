"""What do Megatron-LM's settings mean here, and ours there?"""

from trimtab.spec.migration.megatron.reading import read_megatron
from trimtab.spec.migration.megatron.writing import write_megatron

__all__ = ["read_megatron", "write_megatron"]
