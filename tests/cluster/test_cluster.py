"""The cluster test's own parts: its machines, its copy of the lake, and what it reads on the network."""

import os
import random
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from demo import stored_rows
from kcl_dagster.aws import client
from kcl_dagster.emulator import Endpoint
from tests.cluster import machines
from tests.cluster.image import ROOT
from tests.cluster.lake import LakeCopy
from tests.cluster.sniffer import payload

CLUSTER = [sys.executable, "-m", "tests.cluster"]


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | environment)


def test_a_missing_command_is_named_with_its_package() -> None:
    java = os.environ.get("JAVA_HOME", "/nowhere")
    done = run(CLUSTER, PATH="/nowhere", JAVA_HOME=java)
    assert done.returncode == 2
    assert re.fullmatch(r"make cluster: .*(apt-get install iproute2|Java).*\n", done.stderr, re.DOTALL)


def test_where_namespaces_cannot_be_made_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "outside", lambda: ["sh", "-c", "echo unshare failed: not permitted >&2; exit 1"])
    why = machines.why_impossible()
    if why is not None and "is missing" in why:
        pytest.skip(why)
    assert why is not None
    assert "unshare failed: not permitted. Run it as root" in why
    assert "CAP_NET_ADMIN" in why


PROGRAM = """
import subprocess, sys
from pathlib import Path
from tests.cluster import machines

folder = Path(sys.argv[1])
secret = folder / "operator"
secret.mkdir()
(secret / "file").touch()
one, two = machines.build(folder, ("one", "two"), {"two": (secret,)}).values()

def say(machine, script):
    command = machine.command(["sh", "-c", script])
    return subprocess.run(command, capture_output=True, text=True).stdout.split()

connect = "import socket, sys; socket.create_connection((sys.argv[1], 7), 1)"
def answers(machine, to):
    done = subprocess.run(machine.command([sys.executable, "-c", connect, to]), capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1].split(":")[0]

print(say(one, "hostname; touch mine /tmp/mine; pwd"), say(two, f"hostname; ls . /tmp {secret} {folder}/disks"))
print(answers(one, "two"), answers(one, "operator"), answers(one, "127.0.0.1"))
two.cut()
print(answers(one, "two"))
two.join()
print(say(one, "sleep 99 >/dev/null 2>&1 & true")[:0], two.kill("no such"), len(one.kill("sleep")))
"""


def test_machines_have_a_name_an_address_and_a_disk_and_can_be_cut_off() -> None:
    why = machines.why_impossible()
    if why is not None:
        pytest.skip(why)
    folder = Path(f"/var/tmp/kcl-{random.getrandbits(40):x}")  # machines do not see the real /tmp
    folder.mkdir()
    try:
        done = run([*machines.outside(), sys.executable, "-c", PROGRAM, str(folder)])
        assert done.returncode == 0, done.stderr
        names, reached, cut, killed = done.stdout.splitlines()
    finally:
        subprocess.run(["rm", "-r", str(folder)], check=True)
    seen = f"['.:', 'empty', 'tmp', '/tmp:', '{folder}/disks:', '{folder}/operator:']"
    assert names == f"['one', '{folder}/machine'] ['two', " + seen[1:]
    assert reached == "ConnectionRefusedError ConnectionRefusedError ConnectionRefusedError"
    assert cut in ("TimeoutError", "OSError")
    assert killed == "[] [] 1"


@pytest.mark.server
def test_the_copy_of_the_lake_has_the_order_in_which_objects_were_written(
    sidecar: Endpoint, tmp_path: Path
) -> None:
    s3 = client("s3", region="us-east-1", endpoint_url=sidecar.url, access_key="test", secret_key="test")
    bucket = f"bucket-{random.getrandbits(40):x}"
    s3.create_bucket(Bucket=bucket)
    copy = LakeCopy(s3, bucket, "lake/", tmp_path)
    keys = [f"lake/{name}.parquet" for name in ("chain.10_0_0", "chain.9_0_0", "_staged/chain.8_0_0")]
    times = {0, 1}
    while len(times) > 1:  # S3 has times of whole seconds, and these are to have the same one
        for key in keys:
            s3.put_object(Bucket=bucket, Key=key, Body=Path(key).stem.encode())
        times = {s3.head_object(Bucket=bucket, Key=key)["LastModified"] for key in keys}
    copy.renew()

    def found() -> list[tuple[str, bytes]]:
        paths = sorted(stored_rows.data_files(tmp_path), key=stored_rows.written)
        return [(path.name, path.read_bytes()) for path in paths]

    first, second = ("chain.9_0_0.parquet", b"chain.9_0_0"), ("chain.10_0_0.parquet", b"chain.10_0_0")
    assert found() == [first, second]
    s3.put_object(Bucket=bucket, Key="lake/chain.9_0_0.parquet", Body=b"again")
    copy.renew()
    assert found() == [second, ("chain.9_0_0.parquet", b"again")]
    s3.delete_object(Bucket=bucket, Key="lake/chain.10_0_0.parquet")
    copy.renew()
    assert found() == [("chain.9_0_0.parquet", b"again")]


def test_what_tcp_carries_is_found_in_a_frame() -> None:
    tcp = struct.pack("!HHIIBBHHH", 7079, 40000, 0, 0, 8 << 4, 0, 0, 0, 0) + b"\1" * 12
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp) + 5, 0, 0, 64, 6, 0, b"\n\0\0\1", b"\n\0\0\2")
    frame = b"\0" * 12 + struct.pack("!H", 0x0800) + ip + tcp + b"hello" + b"padding"
    assert payload(frame) == ((7079, 40000), b"hello")
    assert payload(b"\0" * 12 + struct.pack("!H", socket.ntohs(0x0608)) + frame[14:]) is None
    assert payload(frame[:40]) is None


VANISHED = """
import socket, subprocess, sys, threading, time
from pathlib import Path
from kcl_dagster.spark.processor_hosts.certificate import Certificate
from kcl_dagster.spark.processor_hosts.line import Line
from tests.cluster import machines

folder, host = Path(sys.argv[1]), '''
import sys
from kcl_dagster.spark.processor_hosts.line import Line
Line.connect(("operator", int(sys.argv[1])), sys.argv[2], b"secret").recv()
'''
machine = machines.build(folder, ("one",), {})["one"]
certificate = Certificate.new()
with socket.create_server((machines.OPERATOR, 0)) as server:
    port = str(server.getsockname()[1])
    subprocess.Popen(machine.command([sys.executable, "-c", host, port, certificate.certificate]))
    line = Line.accept(server.accept()[0], certificate.context(), b"secret")
machine.cut()
began = time.monotonic()
line.send("order")
threading.Timer(90, lambda: (print("nothing in 90 s", flush=True), machine.kill(), line.close())).start()
try:
    line.recv()
except (EOFError, OSError) as error:
    print("lost" if time.monotonic() - began < 60 else "late", type(error).__name__, flush=True)
import os
os._exit(0)
"""


@pytest.mark.nightly
def test_an_order_to_a_host_whose_machine_vanishes_fails_within_a_minute() -> None:
    """Keepalive does not end a connection on which something is under way."""
    why = machines.why_impossible()
    if why is not None:
        pytest.skip(why)
    folder = Path(f"/var/tmp/kcl-{random.getrandbits(40):x}")
    folder.mkdir()
    try:
        done = run([*machines.outside(), sys.executable, "-c", VANISHED, str(folder)])
    finally:
        subprocess.run(["rm", "-r", str(folder)], check=True)
    assert done.stdout.startswith("lost"), done.stdout + done.stderr
