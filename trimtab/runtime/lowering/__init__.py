"""How is a plan carried out on torch, operator by operator, and is it what one device computes?"""

from trimtab.runtime.lowering.comparing import TOLERANCE, Divergence
from trimtab.runtime.lowering.crew import Crew, CrewError
from trimtab.runtime.lowering.rank import Rank
from trimtab.runtime.lowering.transport import Members, Transport
from trimtab.runtime.lowering.updating import Outcome, Rules
from trimtab.runtime.lowering.verification import Question, Verdict, question_of, verify
from trimtab.runtime.lowering.wires import Wires

__all__ = [
    "TOLERANCE",
    "Crew",
    "CrewError",
    "Divergence",
    "Members",
    "Outcome",
    "Question",
    "Rank",
    "Rules",
    "Transport",
    "Verdict",
    "Wires",
    "question_of",
    "verify",
]
