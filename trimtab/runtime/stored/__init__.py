"""How does a run train a class of the user's own whose tensors are stored in pieces?"""

from trimtab.runtime.stored.module import StoredModule
from trimtab.runtime.stored.runner import StoredRunner
from trimtab.runtime.stored.state import StoredState
from trimtab.runtime.stored.units import storage_of_class

__all__ = ["StoredModule", "StoredRunner", "StoredState", "storage_of_class"]
