"""A link with nobody at its other end: one rank, one epoch, from the first step to the last."""

from typing import Any

from trimtab.policy.wire import Form, Message
from trimtab.runtime.agent_link import Dismissed, Progress
from trimtab.runtime.process_groups import Interrupt, Rendezvous


class SoloLink:
    """A rank that answers to nobody. See Link.

    Attributes:
        sent: What the rank has said, in order.
    """

    def __init__(self) -> None:
        self.progress = Progress()
        self.interrupt = Interrupt()
        self.is_stop_wanted = False
        self.is_border_wanted = False
        self.own_address = "127.0.0.1"
        self.fingerprint: dict[str, str] = {}
        self.sent: list[Message] = []

    def start(self, fingerprint: dict[str, str]) -> None:
        """See Link."""
        self.fingerprint = fingerprint

    def send(self, message: Message) -> None:
        """See Link."""
        self.sent.append(message)

    def next_form(self) -> Form:
        """See Link."""
        return Form(
            epoch=1,
            members=(0,),
            active=(0,),
            store_host="",
            store_port=0,
            step=0,
            source=0,
            is_healing=False,
            owners=(),
        )

    def connect(self, form: Form, rendezvous: Rendezvous) -> Any:
        """See Link; never called, for there is one member."""
        raise AssertionError(form, rendezvous)

    def raise_if_fenced(self) -> None:
        """See Link."""

    def wait_for_end(self) -> None:
        """See Link."""
        raise Dismissed("there is nobody else")
