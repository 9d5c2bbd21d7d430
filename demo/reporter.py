"""Prints the events of the demo line by line, so that the output is the same in a terminal and in a log."""

from datetime import datetime

from rich.console import Console
from rich.text import Text

from demo.folders import DemoFolders


class Reporter:
    """Prints lines that begin with the time. Events are highlighted. The verdict is plain text, for scripts."""

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

    def where(self, folders: DemoFolders) -> None:
        """Print where the data, logs and runs of the demo are."""
        self.line(f"data: {folders.lake} · logs: {folders.logs} · runs: DAGSTER_HOME={folders.dagster_home}")

    def _print(self, text: str, style: str) -> None:
        now = datetime.now().astimezone().strftime("%H:%M:%S")
        self._console.print(Text.assemble((f"{now}  ", "dim"), (text, style)), soft_wrap=True)
