"""socat: a server that forks for each connection and starts a program on it."""
from harness.processes import wait_until
from harness.program import Program
from harness.run import digest, free_port, must_equal

SIZES = (1, 70_001, 1_000_003, 2_500_007)


class Socat(Program):
    name = "socat"
    title = "socat (fork, EXEC)"
    needs = ("socat",)

    def start(self, run):
        self.echo, self.nofork, self.sink = free_port(), free_port(), free_port()
        options = "fork,reuseaddr,bind=127.0.0.1"
        run.serve(["socat", "-t", 20, f"TCP-LISTEN:{self.echo},{options}", "EXEC:cat"], port=self.echo)
        # The connection itself becomes standard input and output of what is executed.
        run.serve(["socat", f"TCP-LISTEN:{self.nofork},{options}", "EXEC:cat,nofork"], port=self.nofork)
        self.sunk = run.path("sunk")
        run.serve(
            ["socat", "-u", f"TCP6-LISTEN:{self.sink},fork,reuseaddr,bind=[::1]", f"CREATE:{self.sunk}"], port=self.sink
        )

    def exchange(self, run):
        contents = [run.random_file(f"content{number}", size) for number, size in enumerate(SIZES)]
        for port in (self.echo, self.nofork):
            clients = [
                run.begin(["socat", "-t", 20, "-", f"TCP:127.0.0.1:{port}"], stdin=content) for content in contents
            ]
            for client, content in zip(clients, contents):
                must_equal(
                    digest(run.finish(client).output), digest(content), f"echo of {content.stat().st_size} bytes"
                )
        run.client(["socat", "-u", f"FILE:{contents[-1]}", f"TCP6:[::1]:{self.sink}"])
        wait_until(lambda: self.sunk_bytes() >= SIZES[-1], "the server writes all it received")
        must_equal(digest(self.sunk), digest(contents[-1]), "what the server wrote")

    def sunk_bytes(self):
        return self.sunk.stat().st_size if self.sunk.exists() else 0

    def endless(self, run):
        client = run.begin(["socat", "-u", "FILE:/dev/zero", f"TCP6:[::1]:{self.sink}"])
        wait_until(lambda: self.sunk_bytes() > 1_000_000, "socat transfers")
        return client
