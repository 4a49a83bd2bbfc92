"""OpenBSD's netcat: a file in each direction."""
from harness.processes import wait_until
from harness.program import Program
from harness.run import digest, free_port, must_equal


class Netcat(Program):
    name = "netcat"
    title = "netcat-openbsd"
    needs = ("nc.openbsd",)

    def start(self, run):
        """A server lives for one connection, so each exchange starts its own."""

    def listen(self, run, address, stdin=None):
        port = free_port()
        return port, run.serve(["nc.openbsd", "-N", "-l", address, port], port=port, stdin=stdin)

    def exchange(self, run):
        content = run.random_file("content", 3_000_017)
        for address in ("127.0.0.1", "::1"):
            port, server = self.listen(run, address)
            run.client(["nc.openbsd", "-N", address, port], stdin=content)
            server.wait(10)
            must_equal(digest(server.output()), digest(content), f"what the server received over {address}")
            port, server = self.listen(run, address, stdin=content)
            got = run.client(["nc.openbsd", "-d", address, port])
            server.wait(10)
            must_equal(digest(got.output), digest(content), f"what the client received over {address}")

    def endless(self, run):
        port, server = self.listen(run, "127.0.0.1")
        client = run.begin(["nc.openbsd", "127.0.0.1", port], stdin="/dev/zero")
        wait_until(lambda: server.out.stat().st_size > 1_000_000, "netcat transfers")
        return client

    def check_lost(self, finished):
        """netcat ends, and has no status for a connection that broke."""
