"""One attack's stage: a folder, three users, their processes. All of it ends with the attack."""
import encodings.idna  # noqa: F401: a user without a way to our Python needs it later
import fcntl
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import struct
import tempfile
import time
import types

from harness.processes import Failure, Hung, Process, wait_until

ALICE, BOB, MALLORY = 64001, 64002, 64003  # a server's owner, an honest client, the attacker
ROOT = 0
NAMES = {ALICE: "alice", BOB: "bob", MALLORY: "mallory", ROOT: "root"}
PEERS = pathlib.Path(__file__).resolve().parent.parent / "peers"
PYTHON = "/usr/bin/python3"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def user_of(uid):
    return types.SimpleNamespace(pw_uid=uid, pw_gid=uid)


class Verdict:
    """ok: the victim lost nothing; text: what was counted."""

    def __init__(self, ok, text):
        self.ok = ok
        self.text = text


class Scene:
    """stage: where the libraries are installed; tools: where the attack programs were built."""

    def __init__(self, stage, tools):
        self.stage = pathlib.Path(stage)
        self.tools = pathlib.Path(tools)
        self.preload = self.stage / "lib/rsocket/librspreload.so"
        self.hostile_libc = self.tools / ".libs/libhostile_libc.so"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ringsock-attack-"))
        self.folder.chmod(0o777)
        self.started = []

    def start(self, argv, user, *, preload=True, hostile=None, env=None, label=None, stdin=None):
        """A process of `user`. preload: True, False or a library; hostile: settings of hostile_libc.cc."""
        libraries = [self.preload] if preload is True else [preload] if preload else []
        environment = {
            "PATH": SEARCH_PATH,
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "RINGSOCK_STATS": "1",
            **(env or {}),
        }
        if hostile is not None:
            libraries.append(self.hostile_libc)
            environment |= {f"HOSTILE_{name.upper()}": str(value) for name, value in hostile.items()}
        if libraries:
            environment["LD_PRELOAD"] = " ".join(map(str, libraries))
        process = Process(
            argv,
            folder=self.folder,
            environment=environment,
            user=None if user == ROOT else user_of(user),
            label=label or f"{NAMES[user]}-{os.path.basename(str(argv[0]))}",
            stdin=stdin,
        )
        self.started.append(process)
        return process

    def python(self, script, *arguments, user, **options):
        """A program of ../peers."""
        return self.start([PYTHON, PEERS / script, *map(str, arguments)], user, **options)

    def patient(self):
        """A folder of settings: clients wait 5 s, not 100 ms, for a ring's listener that does not answer."""
        folder = self.folder / "patient"
        folder.mkdir(exist_ok=True)
        (folder / "connect_patience").write_text("5000\n")
        return folder

    def tool(self, name, *arguments, user=ROOT, **options):
        """A program that was built with the tests; past libtool's script, which would choose the library."""
        built = self.tools / ".libs" / name
        return self.start([built if built.exists() else self.tools / name, *map(str, arguments)], user, **options)

    def echo_server(self, user=ALICE, *arguments, port=0, **options):
        """The victim: one thread that echoes. Returns (process, port)."""
        process = self.python("echo_server.py", port, *arguments, user=user, label="victim", **options)
        return process, int(first_line(process).split()[1])

    def close(self):
        for process in self.started:
            if process.status() is None:
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- probes: what an honest client notices -----------------------------------------------------------------------

    def probe(self, port, mode, user=BOB, *, preload=False, speaks="echo", pause=0.01):
        """A client that goes on until it is told to stop. mode: keep (one connection) or connect (many)."""
        return Probe(
            self.python("probe.py", port, mode, speaks, pause, user=user, preload=preload, label=f"probe-{mode}")
        )

    def counted(self, verdict, process, *wanted):
        """The verdict with what rsstat(1) shows that the process refused; one of the words of `wanted` must be there."""
        if verdict.ok is None or process.status() is not None:
            return verdict
        shown = self.refusals(process)
        text = ", ".join(f"{count} {word}" for word, count in shown.items()) or "nothing"
        return Verdict(verdict.ok and (not wanted or any(word in shown for word in wanted)), f"{verdict.text}; counted as refused: {text}")

    def refusals(self, process):
        """{word: count} of what rsstat(1) shows that the process refused."""
        libraries = {"LD_LIBRARY_PATH": str(self.stage / "lib")}
        argv = [self.stage / "bin/rsstat", "-j", "-p", process.pid]
        shown = self.start(argv, ROOT, preload=False, env=libraries, label="rsstat")
        shown.wait(10)
        found = {}
        if str(process.pid) not in shown.output().decode():
            raise Failure(f"rsstat does not show process {process.pid}: {shown.errors()[-200:]}")
        for each in walk(json.loads(shown.output())):
            found |= each.get("refused", {})
        return {word: count for word, count in found.items() if count}


def walk(value):
    """Each dictionary inside."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from walk(each)


class Probe:
    def __init__(self, process):
        self.process = process
        first_line(process)

    def result(self):
        """{rounds, longest_ms, errors, what}: what it saw; a round that is still under way counts with its age."""
        os.kill(self.process.pid, signal.SIGTERM)
        self.process.wait(15, "tell what it saw")
        return json.loads(self.process.output().splitlines()[-1])


def first_line(process, timeout=20):
    """Waits until a process has said something."""

    def said():
        line, newline, _ = process.output().partition(b"\n")
        if newline:
            return line.decode()
        if process.status() is not None:
            raise Failure(f"{process.label} ended with {process.status()}: {process.text()[-500:]}")
        return None

    return wait_until(said, f"{process.label} says that it is ready", timeout)


# -- names, packets, descriptors -------------------------------------------------------------------------------------


def abstract_names(port):
    """The names of the port's sockets in the abstract AF_UNIX space, as bytes."""
    found = []
    with open("/proc/net/unix", "rb") as table:
        for row in table:
            name = row.rstrip(b"\n").partition(b" @")[2]
            if f"/{port}/".encode() in name or name.endswith(f"-{port}".encode()):
                found.append(b"\0" + name)
    return found


def listening_name(port):
    """The name that the library's listener on the port has."""
    names = [name for name in abstract_names(port) if b"listen" in name]
    if not names:
        raise Failure(f"no ring listens on port {port}: {abstract_names(port)}")
    return names[0]


def lingering_socket(sink, seconds=5):
    """A TCP socket whose close(2) waits that long: unsent data for `sink`, a (listener, port) that reads nothing."""
    sender = socket.create_connection(("127.0.0.1", sink[1]))
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    sender.setblocking(False)
    try:
        while sender.send(bytes(1 << 20)):
            pass
    except BlockingIOError:
        pass
    return sender


def sink():
    """A listener whose clients' data is never read."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return listener, listener.getsockname()[1]


def recorded_request(scene, port, user=MALLORY):
    """(descriptors, bytes) of the first packet that an honest client of `user` sends to a ring on `port`."""
    record = scene.folder / f"record-{time.monotonic_ns()}"
    client = scene.python("probe.py", port, "once", "echo", 0, user=user, hostile={"record": record}, label="recorded")
    client.wait(20)
    if not record.exists():
        raise Failure(f"a client of {NAMES[user]} sends no request over a link: {client.text()[-300:]}")
    descriptors, packet = record.read_text().splitlines()[0].split()
    return int(descriptors), bytes.fromhex(packet)


def sealed_memory(size=1 << 20):
    memory = os.memfd_create("ringsock", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, size)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return memory


def as_user(uid):
    """This process, a fork of the runner, goes on as that user."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


class Attacker:
    """body() runs in a forked process of `user`; it is killed with the attack."""

    def __init__(self, body, user=MALLORY):
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                as_user(user)
                os.close(reader)
                os.write(writer, json.dumps(body()).encode())
                status = 0
            except BaseException as error:  # noqa: B902: whatever it is, it is told
                os.write(writer, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
            finally:
                os._exit(status)
        os.close(writer)
        self._reader = reader

    def result(self, timeout=20):
        """What body() returned."""
        if not select.select([self._reader], [], [], timeout)[0]:
            raise Hung(f"the attacker did not end within {timeout} s")
        # One write; what it forked has the other end, too.
        text = os.read(self._reader, 1 << 16)
        os.close(self._reader)
        os.waitpid(self.pid, 0)
        found = json.loads(text)
        if isinstance(found, dict) and "error" in found:
            raise Failure(f"the attacker failed: {found['error']}")
        return found
