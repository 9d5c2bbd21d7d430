"""What docs/emulator.md shows does what it says."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.server

PAGE = (Path(__file__).parents[3] / "docs" / "emulator.md").read_text()
PORT_ON_THE_PAGE = "4566"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_python_on_the_page_runs() -> None:
    [code] = _blocks("python")
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=300)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_the_commands_on_the_page_run() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    serve, use, _ = (block.replace(PORT_ON_THE_PAGE, port) for block in _blocks("sh"))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "-c", f"exec {serve}"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as emulator:
        assert emulator.stdout is not None
        try:
            assert emulator.stdout.readline().strip() == f"http://127.0.0.1:{port}"
            run = ["bash", "-ec", use]
            said = subprocess.run(run, env=environment, check=True, capture_output=True, text=True, timeout=300)
        finally:
            emulator.terminate()
    assert said.stdout.startswith("[]\n")
    assert '"status": "ok"' in said.stdout
    assert '"error"' not in said.stdout.replace('"error": "InternalFailure"', "")
