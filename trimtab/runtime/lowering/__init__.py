"""How is a plan carried out on torch, operator by operator, and is it what one device computes?"""

from trimtab.runtime.decoder import IGNORED_TARGET
from trimtab.runtime.lowering.batches import Microbatch, own_columns
from trimtab.runtime.lowering.comparing import TOLERANCE, Divergence
from trimtab.runtime.lowering.compression import Key
from trimtab.runtime.lowering.crew import Crew, CrewError
from trimtab.runtime.lowering.extents import Extent, Layouts, assemble
from trimtab.runtime.lowering.host_memory import HostMemory
from trimtab.runtime.lowering.leftovers import Leftovers, Slot
from trimtab.runtime.lowering.loading import boxes, read_piece
from trimtab.runtime.lowering.rank import Rank
from trimtab.runtime.lowering.sites import Stages
from trimtab.runtime.lowering.transport import Members, Transport
from trimtab.runtime.lowering.updating import Outcome, Rules
from trimtab.runtime.lowering.verification import Question, Verdict, question_of, verify
from trimtab.runtime.lowering.wires import Wires

__all__ = [
    "IGNORED_TARGET",
    "TOLERANCE",
    "Crew",
    "CrewError",
    "Divergence",
    "Extent",
    "HostMemory",
    "Key",
    "Layouts",
    "Leftovers",
    "Members",
    "Microbatch",
    "Outcome",
    "Question",
    "Rank",
    "Rules",
    "Slot",
    "Stages",
    "Transport",
    "Verdict",
    "Wires",
    "assemble",
    "boxes",
    "own_columns",
    "question_of",
    "read_piece",
    "verify",
]
