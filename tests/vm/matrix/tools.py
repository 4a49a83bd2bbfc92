"""rstream, riostream and rcopy, Debian's or ours, with each other."""
import hashlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import tempfile

RESULT_LINE = re.compile(r"^[a-z0-9_]+ +[0-9.a-z]+ .*[0-9.]+s +[0-9.]+ +[0-9.]+$", re.MULTILINE)
COMPLAINT = re.compile(r"error|verif|fail", re.IGNORECASE)


class Side:
    """How to start the programs of one side."""

    def __init__(self, folder, environment):
        self.folder, self.environment = folder, environment

    def start(self, words, log):
        return subprocess.Popen(
            [f"{self.folder}/{words[0]}", *words[1:]], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/tmp",
            env={**os.environ, **self.environment}, start_new_session=True,
        )  # fmt: skip


class Run:
    """A server, and clients one after the other. place: the cell's values address, device and port."""

    def __init__(self, server, words, place, deadline):
        self._deadline = deadline
        self._log = tempfile.TemporaryFile()
        self._server = server.start([*words, "-p", str(place["port"])], self._log)
        while self.lives() and not listens(place["device"], place["port"]) and deadline.left():
            pass

    def client(self, side, words):
        """Its exit status (None: not done in time) and what it wrote."""
        with tempfile.TemporaryFile() as log:
            status = wait_until(side.start(words, log), self._deadline)
            log.seek(0)
            return status, log.read().decode(errors="replace")

    def end_of_server(self):
        """Its exit status, once it has ended by itself; None when it does not."""
        return wait_until(self._server, self._deadline)

    def lives(self):
        return self._server.poll() is None

    def close(self):
        """Returns what the server wrote."""
        if self.lives():
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()
        self._log.seek(0)
        return self._log.read().decode(errors="replace")


def listens(device, port):
    """Whether somebody takes RDMA CM connections at a port of a device."""
    words = ["/usr/bin/rdma", "-j", "resource", "show", "cm_id", "state", "LISTEN"]
    ids = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout or "[]")
    return any(one["ifname"] == device and one["src-addr"].endswith(f":{port}") for one in ids)


def has_udp_port(port):
    """Whether a socket of the kernel has the UDP port."""
    return any(f":{port:04X} " in pathlib.Path(f"/proc/net/{table}").read_text() for table in ("udp", "udp6"))


def wait_until(process, deadline):
    while deadline.left():
        try:
            return process.wait(deadline.left())
        except subprocess.TimeoutExpired:
            pass
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return None


def stream_tool(tool, server, client, options, place, deadline):
    """One run with the same options on both sides. None, or why it failed."""
    run = Run(server, [tool, "-b", place["address"], *options], place, deadline)
    status, text = run.client(client, [tool, "-s", place["address"], *options, "-p", str(place["port"])])
    why = None
    if status != 0:
        why = f"the client ended with {status}"
    elif run.end_of_server() != 0:
        why = "the server failed"
    elif not RESULT_LINE.search(text):
        why = "no line of results"
    server_text = run.close()
    if why is None and COMPLAINT.search(text + server_text):
        why = "an error was printed"
    return why and f"{why}\nserver: {server_text}\nclient: {text}"


def datagram_tool(server, client, options, place, deadline):
    """udpong, whose server goes on. None, or why it failed."""
    port = ["-p", str(place["port"])]
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as server_log:
        serving = server.start(["udpong", "-b", place["address"], *options, *port], server_log)
        try:
            while serving.poll() is None and not has_udp_port(place["port"]) and deadline.left():
                pass
            status = wait_until(client.start(["udpong", "-s", place["address"], *options, *port], log), deadline)
        finally:
            os.killpg(serving.pid, signal.SIGKILL)
            serving.wait()
        log.seek(0)
        text = log.read().decode(errors="replace")
    if status == 0 and len(text.splitlines()) > 1 and not COMPLAINT.search(text):
        return None
    return f"the client ended with {status}: {text}"


def list_devices(side, addresses, deadline):
    """What rsdevices says of the guest, for a side that is to use real devices only. None, or what is wrong with it."""
    with tempfile.TemporaryFile() as log:
        status = wait_until(side.start(["rsdevices", "--json"], log), deadline)
        log.seek(0)
        text = log.read().decode(errors="replace")
    if status != 0:
        return f"it ended with {status}: {text}"
    usable = {device["name"]: device["type"] for device in json.loads(text)["devices"] if device["usable"]}
    found = {
        address["address"] for device in json.loads(text)["devices"] for port in device["ports"] for address in port["addresses"]
    }
    return None if usable == {"rxe0": "RoCE", "siw0": "iWARP"} and addresses <= found else text


def copy_tool(server, client, place, deadline):
    """Files of several sizes to one server. None, or why it failed."""
    problems = []
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        original, copy = pathlib.Path(folder) / "original", pathlib.Path(folder) / "copy"
        run = Run(server, ["rcopy"], place, deadline)
        for size in (1, 4097, 1234567):
            data = random.Random(size).randbytes(size)
            original.write_bytes(data)
            copy.unlink(missing_ok=True)
            status, text = run.client(client, ["rcopy", str(original), f"{place['address']}:{copy}", "-p", str(place["port"])])
            if status != 0:
                problems.append(f"the client ended with {status} ({size} bytes): {text}")
            elif not copy.exists() or hashlib.sha256(copy.read_bytes()).digest() != hashlib.sha256(data).digest():
                problems.append(f"the copy of {size} bytes differs")
        if not run.lives():
            problems.append("the server did not live on")
        server_text = run.close()
    return "; ".join(problems) + f"\nserver: {server_text}" if problems else None
