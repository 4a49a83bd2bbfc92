"""A second host behind a veth pair: a network namespace that ends with its process."""
import json
import os
import subprocess

from harness.processes import wait_until
from .scene import PEERS, PYTHON, ROOT, first_line

HERE, THERE = "10.77.0.1", "10.77.0.2"


def commands(*lines):
    for line in lines:
        subprocess.run(line.split(), check=True)


class SecondHost:
    def __init__(self, scene):
        self.scene = scene
        self.process = scene.start(["unshare", "--net", "sleep", "60"], ROOT, preload=False, label="second-host")
        pid = self.process.pid
        commands("ip link add ringsock0 type veth peer name ringsock1")
        wait_until(lambda: self._has_left(pid), "the second host has a network of its own")
        commands(
            f"ip link set ringsock1 netns {pid}",
            f"ip addr add {HERE}/24 dev ringsock0",
            "ip link set ringsock0 up",
            f"nsenter -t {pid} -n ip addr add {THERE}/24 dev ringsock1",
            f"nsenter -t {pid} -n ip link set ringsock1 up",
        )

    @staticmethod
    def _has_left(pid):
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")

    def udp_server(self, port):
        """Root's echo server over libvma, on this host."""
        library = self.scene.stage / "lib/libvma.so"
        server = self.scene.python("udp_echo.py", HERE, port, user=ROOT, preload=library, label="victim")
        first_line(server)
        return server

    def udp_client(self, port, seconds):
        """Asks from the second host; says {rounds, lost, longest_ms} at its end."""
        argv = ["nsenter", "-t", str(self.process.pid), "-n", PYTHON, PEERS / "udp_probe.py", HERE, str(port), str(seconds)]
        client = self.scene.start(argv, ROOT, preload=False, label="udp-probe")
        first_line(client)
        return client

    def result(self, client):
        client.wait(20)
        return json.loads(client.output().splitlines()[-1])

    def path(self, server):
        """ring or kernel, as rsstat(1) shows of the server's socket."""
        shown = self.scene.start(
            [self.scene.stage / "bin/rsstat", "-j", "-p", server.pid], ROOT, preload=False, label="rsstat"
        )
        shown.wait(10)
        processes = json.loads(shown.output())["libvma"]
        return processes[0]["sockets"][0]["path"] if processes else "unknown"

    def close(self):
        subprocess.run(["ip", "link", "del", "ringsock0"], check=False)
