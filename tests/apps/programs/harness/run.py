"""One run of one program: its folder, its ports, its processes, and which side of it is preloaded."""
import hashlib
import os
import pathlib
import pwd
import random
import shutil
import socket
import tempfile

from . import processes
from .processes import Failure, Process, wait_until

TCP_LISTEN = "0A"  # state column of /proc/net/tcp
CLIENT_ENDS_S = 20  # none takes more than a few seconds
CROWD = pathlib.Path(__file__).resolve().parent / "crowd.py"


class Library:
    """The preload library under test.

    path: pathlib.Path, or None for "nothing is preloaded"; settings: environment that goes with it, {name: value};
    unused: environment under which it stays out of every connection, {name: value}.
    """

    def __init__(self, path=None, settings=None, unused=None):
        self.path = path
        self.settings = settings or {}
        self.unused = unused or {}

    def environment(self, used=True):
        if self.path is None:
            return {}
        return {"LD_PRELOAD": str(self.path), "RINGSOCK_STATS": "1", **self.settings, **({} if used else self.unused)}


class Finished:
    """A client that has ended: status, output (bytes), text (standard output and error)."""

    def __init__(self, process):
        self.process = process
        self.status = process.status()
        self.output = process.output()
        self.text = process.text()


class Run:
    """Started by a program of ../programs; ends everything it started and removes its folder.

    server, client: the environment of each side's preload (empty: none); client_user: who runs the clients, None: the
    user of the harness. Threads: one.
    """

    kept = frozenset()  # pids of children of the harness that are none of a run's processes

    def __init__(self, name, *, server=None, client=None, client_user=None):
        self.name = name
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"ringsock-{name}-"))
        self.folder.chmod(0o755 if client_user is None else 0o777)
        self._client_user = client_user
        self._served = []
        self._sides = {"server": server or {}, "client": client or {}, "tool": {}}
        self._started = {side: [] for side in self._sides}
        self._more_errors = {side: [] for side in self._sides}
        self._ends = []

    # -- what programs call ------------------------------------------------------------------------------------------

    def tool(self, argv, *, user=None, timeout=60):
        """Runs something that is not under test and never preloaded."""
        process = self._start("tool", argv, user=user)
        return self.finish(process, timeout=timeout)

    def serve(self, argv, *, port=None, ready=None, timeout=20, **options):
        """Starts a server and returns it once `port` listens, or ready(process) is true, which it must be within
        `timeout` seconds. options: those of Process."""
        process = self._start("server", argv, **options)
        self._served.append((process, {"argv": argv, "port": port, "ready": ready, "timeout": timeout, **options}))
        condition = (lambda: ready(process)) if ready else (lambda: port is None or is_listening(port))
        wait_until(lambda: condition() or self._refuse_dead(process), f"{process.describe()} is ready", timeout)
        return process

    def client(self, argv, *, status=0, timeout=CLIENT_ENDS_S, **options):
        """Runs a client to its end; Failure unless it exits with `status` (None: any) within `timeout` seconds."""
        return self.finish(self.begin(argv, **options), status=status, timeout=timeout)

    def begin(self, argv, **options):
        """Starts a client and does not wait for it. options: those of Process."""
        if self._client_user is not None:
            options.setdefault("user", self._client_user)
        return self._start("client", argv, **options)

    def begin_crowd(self, port, count):
        """Starts a client with `count` connections to the port, and returns once it has them. Its end() closes them,
        after as many short connections; it exits with 0 if no connection was reset or closed before."""
        crowd = self.begin(["python3", "-B", CROWD, port, count])
        wait_until(
            lambda: crowd.output() == b"connected\n" or self._refuse_dead(crowd), f"{count} connections are made", 60
        )
        return crowd

    def finish(self, process, *, status=0, timeout=CLIENT_ENDS_S, signals=()):
        """signals: those that may end it."""
        got = process.wait(timeout)
        if (got < 0 and -got not in signals) or (status is not None and got != status):
            raise Failure(f"ended with {got}, not {status}: {process.describe()}")
        return Finished(process)

    def kill_servers(self):
        for process in self._started["server"]:
            if process.status() is None:
                process.kill()

    def restart_servers(self):
        """kill -9 to every server that runs, and the same command again for each, on the same port."""
        alive = [options for process, options in self._served if process.status() is None]
        self.kill_servers()
        processes.reap_strays({process.pid for started in self._started.values() for process in started} | self.kept)
        self._served.clear()
        for options in alive:
            self.serve(**options)

    def end_servers(self):
        """Asks every server to end, the last started first; Failure when one does not."""
        for process in reversed(self._started["server"]):
            process.end()

    def path(self, name):
        return self.folder / name

    def translated(self, text):
        """The text with the addresses under which this run's servers are found."""
        return text

    def write(self, name, content, mode=0o644):
        path = self.path(name)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return path

    def random_file(self, name, size):
        return self.write(name, os.urandom(size))

    def errors_also_in(self, side, path):
        """A program of that side makes this file its standard error."""
        self._more_errors[side].append(path)

    def at_end(self, action):
        """action() is called when all processes are gone."""
        self._ends.append(action)

    # -- what the driver calls ---------------------------------------------------------------------------------------

    def last_lines(self):
        """The end of what the last processes of each side said."""
        lines = [
            line for side in self._started for process in self._started[side][-3:] for line in process.last_lines()
        ]
        others = [path for paths in self._more_errors.values() for path in paths if path.exists()]
        return lines + [
            f"{path.name}: {line}" for path in others for line in path.read_text(errors="replace").splitlines()[-6:]
        ]

    def where(self):
        """Where each live process stands, as lines."""
        return [
            line
            for started in self._started.values()
            for process in started
            if process.status() is None
            for line in process.where()
        ]

    def errors_of(self, side):
        """Standard error of each process of a side, as texts."""
        paths = [process.err for process in self._started[side]] + self._more_errors[side]
        return [path.read_text(errors="replace") for path in paths if path.exists()]

    def close(self):
        """Ends what still runs, removes the folder. Returns command lines of processes that belonged to nobody."""
        for started in self._started.values():
            for process in started:
                if process.status() is None:
                    process.kill()
        strays = processes.reap_strays(self.kept)
        for action in self._ends:
            action()
        shutil.rmtree(self.folder, ignore_errors=True)
        return strays

    # -- inside ------------------------------------------------------------------------------------------------------

    def _start(self, side, argv, **options):
        base = {
            "PATH": processes.SEARCH_PATH,
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "LC_ALL": "C.UTF-8",
        }
        process = Process(argv, folder=self.folder, environment={**base, **self._sides[side]}, **options)
        self._started[side].append(process)
        return process

    @staticmethod
    def _refuse_dead(process):
        if process.status() is not None:
            raise Failure(f"ended with {process.status()} before it was ready: {process.describe()}")
        return False


def is_listening(port):
    """Whether a TCP socket of this network namespace listens on the port. A connection to find out would be counted."""
    suffix = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as rows:
                for row in rows:
                    columns = row.split()
                    if columns[3] == TCP_LISTEN and columns[1].endswith(suffix):
                        return True
        except OSError:
            pass
    return False


def free_port():
    """A TCP port nobody holds at the moment, below those that the kernel hands out by itself."""
    while True:
        port = random.randrange(10000, 32000)
        try:
            for family, address in ((socket.AF_INET, ""), (socket.AF_INET6, "::")):
                with socket.socket(family, socket.SOCK_STREAM) as probe:
                    if family == socket.AF_INET6:
                        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    probe.bind((address, port))
            return port
        except OSError:
            pass


def digest(content):
    """SHA-256, in hex, of bytes or of a file."""
    return hashlib.sha256(content if isinstance(content, bytes) else pathlib.Path(content).read_bytes()).hexdigest()


def must_equal(got, wanted, what):
    if got != wanted:
        raise Failure(f"{what}: {got!r:.200}, not {wanted!r:.200}")


def must_hold(text, piece):
    if piece not in text:
        raise Failure(f"no {piece!r} in its output")


def ordinary_user():
    """Somebody who is not root, for servers that refuse to be root; None when we are nobody special ourselves."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None
