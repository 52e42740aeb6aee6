"""The engine that job files call ``local``."""

from trimtab.engines.engine import Observer, Outcome
from trimtab.engines.launch import Launch
from trimtab.engines.local.agent import Agent
from trimtab.engines.local.script_agent import ScriptAgent


class LocalEngine:
    """Ranks on this machine under Trimtab's own agent. See Engine."""

    name = "local"
    survives_in_step = True

    def request(self, launch: Launch) -> Launch:
        """The launch itself: the agent starts each rank with its command."""
        return launch

    def run(self, launch: Launch, observe: Observer) -> Outcome:
        """See Engine."""
        agent = ScriptAgent if launch.script else Agent
        return agent(launch, observe).run()
