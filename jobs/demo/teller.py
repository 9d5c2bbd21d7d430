"""Says what happens, one line at a time, so that it reads the same in a terminal and in a log."""

from datetime import datetime

from rich.console import Console
from rich.text import Text

from jobs.demo.settings import DemoSettings
from resources import lake


class Teller:
    """Prints with the time in front. Events stand out; the verdict stands alone, unadorned, for scripts."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def line(self, text: str) -> None:
        self._print(text, "")

    def event(self, text: str) -> None:
        self._print(text, "bold cyan")

    def plain(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def problem(self, text: str) -> None:
        self._console.print(Text(text, style="bold red"), soft_wrap=True)

    def where(self, settings: DemoSettings) -> None:
        """Where to find what is left of the demo."""
        self.line(f"data: {lake.lake()} · logs: {settings.logs} · runs: DAGSTER_HOME={settings.dagster_home}")

    def _print(self, text: str, style: str) -> None:
        now = datetime.now().astimezone().strftime("%H:%M:%S")
        self._console.print(Text.assemble((f"{now}  ", "dim"), (text, style)), soft_wrap=True)
