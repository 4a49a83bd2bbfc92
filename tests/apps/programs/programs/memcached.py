"""memcached with the clients of libmemcached."""
import os
import socket

from harness.processes import wait_until
from harness.program import Program
from harness.run import digest, free_port, must_equal, must_hold


class Memcached(Program):
    name = "memcached"
    title = "memcached, memcslap, memccp, memccat, memcaslap"
    crowd = 900
    not_in = ("user",)  # memcaslap ends with 1, on the kernel, too
    needs = ("memcached", "memcslap", "memccp", "memccat", "memcstat", "memcaslap")

    def start(self, run):
        self.port = free_port()
        self.servers = f"--servers=127.0.0.1:{self.port}"
        as_root = ["-u", "nobody"] if os.geteuid() == 0 else []
        run.serve(
            ["memcached", "-l", "127.0.0.1", "-p", self.port, "-U", 0, "-t", 4, "-I", "4m", "-m", 256, *as_root],
            port=self.port,
        )

    def slap(self, *words):
        return ["memcslap", self.servers, *words]

    def exchange(self, run):
        value = run.random_file("value", 900_001)
        run.client(["memccp", self.servers, value])
        # memccat adds a line feed to what it prints.
        must_equal(
            digest(run.client(["memccat", self.servers, "value"]).output[:-1]), digest(value), "the value read back"
        )
        run.client(self.slap("--concurrency=8", "--execute-number=500", "--test=set", "--flush"))
        run.client(self.slap("--concurrency=8", "--execute-number=500", "--initial-load=500", "--test=get"))
        counters = run.client(["memcstat", self.servers]).text
        for wanted in ("cmd_set: 4501\n", "get_hits: 4001\n", "get_misses: 0\n"):
            must_hold(counters, wanted)
        verified = run.client(
            ["memcaslap", "-s", f"127.0.0.1:{self.port}", "-T", 2, "-c", 8, "-x", 4000, "-v", "1.0"]
        ).text
        for wanted in ("get_misses: 0\n", "verify_misses: 0\n", "verify_failed: 0\n", "Ops: 4000 "):
            must_hold(verified, wanted)

    def endless(self, run):
        client = run.begin(self.slap("--concurrency=4", "--execute-number=300000", "--test=set"))
        wait_until(lambda: items(self.port) > 0, "memcslap stores items", 20)
        return client

    def check_lost(self, finished):
        """memcslap tells of errors but ends with 0."""
        must_hold(finished.text, "CONNECTION FAILURE")


def items(port):
    """How many items the server holds."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"stats\r\n")
        answer = b""
        while not answer.endswith(b"END\r\n"):
            answer += connection.recv(4096) or b"END\r\n"
    counters = dict(line.split()[1:3] for line in answer.splitlines() if line.startswith(b"STAT "))
    return int(counters.get(b"curr_items", 0))
