"""What do torchtitan's settings mean here?"""

from trimtab.spec.migration.torchtitan.importing import read_torchtitan

__all__ = ["read_torchtitan"]
