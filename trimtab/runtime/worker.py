"""`python -m trimtab.runtime.worker`: one rank under an agent. Its ticket arrives on standard input.

What takes time to load, torch above all, is imported when the ticket has been taken: this process is tied to its agent
then, and does not outlive one that is killed meanwhile.
"""

import os
import sys
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trimtab.runtime.tickets import hear_stop_notices, open_recorder, take_ticket
from trimtab.terms import InputError, TrimtabError

if TYPE_CHECKING:
    from trimtab.runtime.agent_link import AgentLink
    from trimtab.runtime.recorder import Recorder


def main() -> None:
    """Be a rank until the agent dismisses it; exits 1 after an error of its own, having told the agent first."""
    ticket = take_ticket()
    if ticket is None:
        return
    from trimtab.runtime.agent_link import AgentLink

    recorder = open_recorder(ticket)
    link = AgentLink(
        (ticket["agent_host"], ticket["agent_port"]),
        token=ticket["token"],
        rank=ticket["rank"],
        incarnation=ticket["incarnation"],
        beat_s=ticket["settings"]["beat_s"],
        own_address=ticket["address"],
    )
    hear_stop_notices(link.ask_to_stop)
    code = _work(ticket, recorder, link)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # not sys.exit: an abandoned collective may block its teardown for minutes


def _work(ticket: Mapping[str, Any], recorder: "Recorder", link: "AgentLink") -> int:
    try:
        from trimtab.runtime.assembly import assemble

        assemble(ticket, recorder, link).run()
    except Exception as error:  # noqa: BLE001 - whatever it is, the agent must hear the first cause
        traceback.print_exc()
        from trimtab.policy.wire import Failed

        text = str(error) if isinstance(error, TrimtabError) else f"{type(error).__name__}: {error}"
        progress = link.progress
        link.send(
            Failed(
                step=progress.step,
                phase=progress.phase,
                error=text,
                is_input_error=isinstance(error, InputError),
            )
        )
        return 1
    return 0


if __name__ == "__main__":
    main()
