"""Java NIO: an echo server on one selector, clients that verify."""
import pathlib
import tempfile

from harness.processes import wait_until
from harness.program import Program
from harness.run import free_port, must_equal

SOURCE = pathlib.Path(__file__).parent / "peers" / "NioEcho.java"


class JavaNio(Program):
    name = "java-nio"
    title = "Java NIO echo (selector, channels, plain sockets)"
    crowd = 1000
    needs = ("java", "javac")

    def __init__(self):
        self.classes = None

    def java(self, role):
        return [
            "java",
            "-Xshare:auto",
            "-XX:TieredStopAtLevel=1",
            "-Xmx128m",
            "-Decho.host=127.0.0.1",
            "-cp",
            self.classes,
            "NioEcho",
            role,
            self.port,
        ]

    def start(self, run):
        self.port = free_port()
        self.compile(run)
        run.serve(self.java("server"), port=self.port, label="java-server")

    def compile(self, run):
        """Once for all runs."""
        if self.classes is None:
            self.folder = tempfile.TemporaryDirectory(prefix="ringsock-java-")
            run.tool(["javac", "-d", self.folder.name, SOURCE])
            pathlib.Path(self.folder.name).chmod(0o755)  # clients may be another user's
            self.classes = self.folder.name

    def exchange(self, run):
        must_equal(run.client(self.java("client")).output.strip(), b"correct", "the client's verdict")

    def endless(self, run):
        client = run.begin(self.java("endless"))
        wait_until(lambda: client.output() == b"begun\n", "the client says that data flows")
        return client
