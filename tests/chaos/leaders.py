"""Two standby leaders, one of which leads."""

import signal
from dataclasses import dataclass, field

from tests.chaos.child_processes import Child
from tests.chaos.plan import Plan

NAMES = ("standby-a", "standby-b")


@dataclass
class Leaders:
    """Processes by name. A second one of a name is a twin: it counts as the same candidate for the lock."""

    plan: Plan
    children: dict[str, Child] = field(default_factory=dict)
    twins: list[Child] = field(default_factory=list)

    def start(self, name: str) -> str:
        known = self.children.get(name)
        if known is None or not known.is_alive:
            self.children[name] = self._start(name, name)
        return f"{name} is started"

    def leading(self) -> Child:
        """The one that said so last; whoever lives when none did. Raises IndexError without any."""
        living = [child for child in self.children.values() if child.is_alive]
        leading = [child for child in living if _last_state(child) == "leading"]
        return (leading or living)[0]

    def kill(self) -> str:
        child = self.leading()
        child.send(signal.SIGKILL)
        child.close()
        return child.name

    def twin(self) -> Child:
        name = self.leading().name
        twin = self._start(f"{name}-twin-{len(self.twins)}", name)
        self.twins.append(twin)
        return twin

    def all(self) -> list[Child]:
        return [*self.children.values(), *self.twins]

    def _start(self, process: str, name: str) -> Child:
        return Child.start(process, "tests.chaos.leader", [str(self.plan.path), name], self.plan.logs)


def _last_state(child: Child) -> str:
    """`leading` or `standing by ...`, as the last report says."""
    with child.said.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 8192))
        lines = file.read().decode(errors="replace").splitlines()
    states = [line.split(" ", 1)[1] for line in lines if line and not line.startswith(" ") and " " in line]
    return states[-1] if states else ""
