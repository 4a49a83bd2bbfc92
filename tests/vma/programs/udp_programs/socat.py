"""socat: servers that fork, and a program on the socket."""
from harness.processes import wait_until
from harness.run import digest, must_equal
from two_hosts.cell import UdpProgram
from two_hosts.hosts import IPV4, IPV6, THERE

ROUNDS = 4


class Socat(UdpProgram):
    name = "socat-udp"
    needs = ("socat",)
    # Who has shut down one direction has the kernel's socket; and so have the children of who forks.
    directions = {"client": ("sends",), "server": ("receives",)}
    kernel_most = 0.5
    leaves_children = True

    def start(self, run):
        self.each, self.both, self.sink = run.free_port(), run.free_port(), run.free_port()
        # A child for each datagram; a child for each peer, with a program on its socket.
        self.forking = run.serve_udp(["socat", f"UDP4-RECVFROM:{self.each},fork", "EXEC:cat"], self.each)
        self.serving = run.serve_udp(["socat", f"UDP4-LISTEN:{self.both},fork,reuseaddr", "EXEC:cat,nofork"], self.both)
        self.sunk = run.path("sunk")
        run.serve_udp(["socat", "-u", f"UDP6-RECV:{self.sink}", f"CREATE:{self.sunk}"], self.sink)

    def exchange(self, run):
        for port in (self.each, self.both):
            for number in range(ROUNDS):
                content = run.random_file(f"content{number}", 1 + 140 * number)
                client = run.client(["socat", "-t", 1, "-", f"UDP4:{IPV4[THERE]}:{port}"], stdin=content)
                must_equal(digest(client.output), digest(content), f"echo of {content.stat().st_size} bytes, {port}")
        content = run.random_file("content", 40_000)
        run.client(["socat", "-u", "-b", 1000, f"FILE:{content}", f"UDP6-SENDTO:[{IPV6[THERE]}]:{self.sink}"])
        wait_until(lambda: self.sunk.exists() and self.sunk.stat().st_size == 40_000, "the server writes all it received")
        must_equal(digest(self.sunk), digest(content), "what the server wrote")
        # Its children do not end with it.
        for process in (self.forking, self.serving):
            process.kill()
