"""Python 3: http.server, asyncio, multiprocessing."""
import pathlib
import signal

from harness.processes import wait_until
from harness.program import Program
from harness.run import digest, free_port, must_equal

PEERS = pathlib.Path(__file__).parent / "peers"


class PythonPeers(Program):
    """A script of peers/: `SCRIPT ROLE PORT`; role client prints "correct", role endless prints "begun"."""

    needs = ("python3",)
    interpreter = "python3"
    script = ""

    def peer(self, role):
        return [self.interpreter, "-B", PEERS / self.script, role, self.port]

    def start(self, run):
        self.port = free_port()
        run.serve(self.peer("server"), port=self.port, label="python3-server", stop=signal.SIGINT)

    def exchange(self, run):
        must_equal(run.client(self.peer("client")).output.strip(), b"correct", "the client's verdict")

    def endless(self, run):
        client = run.begin(self.peer("endless"))
        wait_until(lambda: client.output() == b"begun\n", "the client says that data flows")
        return client


class Asyncio(PythonPeers):
    name = "python-asyncio"
    title = "Python asyncio echo (streams)"
    crowd = 1000
    script = "asyncio_echo.py"


class Multiprocessing(PythonPeers):
    name = "python-multiprocessing"
    title = "Python multiprocessing manager over TCP, forked clients"
    script = "multiprocessing_manager.py"


class HttpServer(Program):
    name = "python-http"
    title = "Python http.server, urllib"
    needs = ("python3",)

    def start(self, run):
        self.port = free_port()
        www = run.path("www")
        www.mkdir()
        self.files = [run.random_file(f"www/{size}", size) for size in (0, 1, 65_537, 3_000_001)]
        with open(www / "endless", "wb") as sparse:
            sparse.truncate(1 << 40)
        run.serve(
            ["python3", "-m", "http.server", "--bind", "127.0.0.1", "--directory", www, self.port],
            port=self.port,
            stop=signal.SIGINT,
        )

    def fetch(self, *names):
        return ["python3", "-B", PEERS / "http_fetch.py", f"http://127.0.0.1:{self.port}", *names]

    def exchange(self, run):
        wanted = "".join(f"{digest(file)} {file.name}\n" for file in self.files)
        must_equal(
            run.client(self.fetch(*(file.name for file in self.files))).output.decode(),
            wanted,
            "sums of the files fetched",
        )

    def endless(self, run):
        client = run.begin(self.fetch("endless"))
        wait_until(lambda: b"begun" in client.output(), "the client says that data flows")
        return client
