"""A program of tests/apps/programs, made for one host, between two hosts: its addresses become those of the server's."""
import pathlib
import re

from harness.processes import Failure, wait_until

from .cell import MODES, NetworkProgram
from .hosts import HERE, IPV4, IPV6, THERE
from .run import HostRun

SERVICE = pathlib.Path("/var/run/vma_agent.sock")
CLIENT_NOTICES_S = 15  # how long a client may take to end after its server was killed


class TranslatedRun(HostRun):
    """Command lines, files that are written, and scripts get the addresses of the server's host."""

    def __init__(self, name, hosts, **sides):
        super().__init__(name, hosts, **sides)
        for side in ("server", "client"):
            self._sides[side].setdefault("VMA_VMAD_NOTIFY_DIR", str(self.path("notify")))
        self._sides["service"], self._started["service"], self._more_errors["service"] = {}, [], []

    def translated(self, text):
        """Servers stay root, too: without CAP_NET_ADMIN a process leaves its connections to the kernel."""
        text = text.replace("127.0.0.1", IPV4[THERE]).replace("user nobody nogroup;", "user root root;")
        return re.sub(r"(?<![\w:])::1(?![\w:])", IPV6[THERE], "root" if text == "nobody" else text)

    def serve(self, argv, *, port=None, ready=None, **options):
        listens = ready or (lambda _: port is None or self.hosts.is_listening(THERE, port))
        return super().serve(argv, ready=listens, **options)

    def write(self, name, content, mode=0o644):
        return super().write(name, content if isinstance(content, bytes) else self.translated(content), mode)

    def serve_resets(self):
        """Starts the vmad that is installed beside the library, on the server's host."""
        vmad = pathlib.Path(self._sides["server"]["LD_PRELOAD"]).resolve().parent.parent / "sbin" / "vmad"
        if not vmad.exists() or SERVICE.exists():
            raise Failure(f"{SERVICE} is another vmad's" if SERVICE.exists() else f"{vmad} is missing")
        self.at_end(lambda: SERVICE.unlink(missing_ok=True))
        lock, notify = self.path("vmad.lock"), self._sides["server"]["VMA_VMAD_NOTIFY_DIR"]
        self._start("service", [vmad, "--console", "-n", notify, "--lock-file", lock, "-r", 100])
        wait_until(SERVICE.exists, "vmad serves")

    def _start(self, side, argv, **options):
        return super()._start(side, [self._word(word) for word in argv], **options)

    def _word(self, word):
        is_script = isinstance(word, pathlib.Path) and word.suffix in (".py", ".js", ".erl")
        if not is_script or word.parent == self.folder:
            return self.translated(str(word))
        return self.write(word.name, word.read_text())


class TableProgram(NetworkProgram):
    """`inner`, a harness.program.Program, with its connections by TCP over rings."""

    modes = MODES
    quick = ("both", "killed")
    kernels = "packets"
    # The kernel makes and ends the connections.
    least = 4
    kernel_few = 400
    kernel_most = 1.0

    def __init__(self, inner, **differences):
        self.inner = inner
        self.name = f"{inner.name}-tcp"
        self.needs = inner.needs
        for name, value in differences.items():
            assert hasattr(type(self), name), name
            setattr(self, name, value)

    def make_run(self, hosts, **sides):
        return TranslatedRun(self.name, hosts, **sides)

    def start(self, run):
        self.inner.start(run)

    def exchange(self, run):
        self.inner.exchange(run)

    def killed(self, run):
        """The server is killed; its client is told, and ends, even if it only waits: vmad resets its connections."""
        run.serve_resets()
        before = {host: run.hosts.packets(host, self.kernels) for host in (HERE, THERE)}
        client = self.inner.endless(run)
        wait_until(lambda: self._is_on_rings(run, before), "both sides' rings carry the connection")
        if client.status() is not None:
            raise Failure(f"the client ended with {client.status()} before its server was killed")
        run.kill_servers()
        finished = run.finish(client, status=None, timeout=CLIENT_NOTICES_S, signals=self.inner.may_die_of)
        self.inner.check_lost(finished)

    def _is_on_rings(self, run, before):
        sides = {side: host for side, host in (("client", HERE), ("server", THERE)) if side not in self.kernel_because}
        went = [run.hosts.packets(host, self.kernels).since(before[host]) for host in sides.values()]
        return all(min(packets.rings_in, packets.rings_out) >= self.least for packets in went)
