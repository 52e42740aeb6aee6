"""How a collective travels: for each route, who sends how many elements to whom.

A route is a function of the operation, the ranks of a group with the places that they stand on, and the elements.
Indices are places in the group, in order of rank; elements are summed over all messages of one pair.
"""

from trimtab.plan.collectives.request import Request, Send
from trimtab.plan.collectives.routes import ROUTES, RouteError, sends_of

__all__ = ["ROUTES", "Request", "RouteError", "Send", "sends_of"]
