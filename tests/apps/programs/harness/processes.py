"""Processes with a log, a time limit and an end that is certain.

Every process is started directly (no shell), as the leader of its own session, with a small environment of its own;
what it prints goes to files. The harness adopts orphans (PR_SET_CHILD_SUBREAPER), so nothing that a program forked
outlives its run.
"""
import ctypes
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

PR_SET_CHILD_SUBREAPER = 36
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STACK_DEPTH = 10
BUSY_SINCE_S = 0.1
ANOTHER_LOOK_S = 0.005  # between two looks at what has no event to wait for (a file that grows, a port that listens)


class Failure(Exception):
    """A program did not do what it must; the text is what is reported."""


class Hung(Failure):
    """It did nothing for longer than it may: where everybody stands is of interest."""


def adopt_orphans():
    """From now on whatever a child of ours leaves behind becomes our child."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def find_program(name):
    """Path of an executable, or None."""
    return shutil.which(name, path=SEARCH_PATH)


def wait_until(holds, what, timeout=10.0):
    """Returns the first true value of holds(); Failure when none came within timeout seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = holds()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Hung(f"{what}: not within {timeout:g} s")
        time.sleep(ANOTHER_LOOK_S)


def children_of(pid):
    """Pids of the live or dead children of all threads of pid; none when it is gone."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except OSError:
        pass
    return found


def tree_of(pid):
    """pid and all that descends from it, parents first."""
    found = [pid]
    for each in found:
        found += children_of(each)
    return found


def is_zombie(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def signal_quietly(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def command_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(gone)"


def stacks_of(pid):
    """Where each thread of a hung process stands: the debugger's view if there is one, else the kernel's."""
    if find_program("gdb"):
        try:
            shown = subprocess.run(
                [
                    "gdb",
                    "-p",
                    str(pid),
                    "-batch",
                    "-nx",
                    "-ex",
                    "set pagination off",
                    "-ex",
                    f"thread apply all bt {STACK_DEPTH}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=20,
            )
            lines = shown.stdout.decode(errors="replace").splitlines()
            return [line[:160] for line in lines if line.startswith(("#", "Thread")) and " std::" not in line]
        except subprocess.TimeoutExpired:
            pass
    try:
        return [
            f"waits in {pathlib.Path(f'/proc/{pid}/wchan').read_text()}, system call "
            f"{pathlib.Path(f'/proc/{pid}/syscall').read_text().strip()}"
        ]
    except OSError as error:
        return [f"no stack: {error}"]


class Process:
    """One started program and what it forked.

    out, err: pathlib.Path of its standard output and error; label: what reports call it; stop: signal that asks it to
    end; errors_by_pipe: standard error is a pipe, for programs that forbid themselves to write files.
    """

    _numbers = itertools.count(1)

    def __init__(
        self, argv, *, folder, environment, label=None, user=None, stdin=None, stop=signal.SIGTERM, errors_by_pipe=False
    ):
        number = next(self._numbers)
        self.label = label or os.path.basename(argv[0])
        self.argv = [str(word) for word in argv]
        self.stop = stop
        self.out = folder / f"{number:03d}-{self.label}.out"
        self.err = folder / f"{number:03d}-{self.label}.err"
        path = find_program(self.argv[0])
        if path is None:
            raise Failure(f"{self.argv[0]} is not installed")
        source = open(stdin, "rb") if isinstance(stdin, (str, os.PathLike)) else stdin
        as_user = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self._child = subprocess.Popen(
                [path, *self.argv[1:]],
                env=environment,
                cwd=folder,
                stdout=out,
                stderr=subprocess.PIPE if errors_by_pipe else err,
                stdin=subprocess.DEVNULL if source is None else source,
                start_new_session=True,
                **as_user,
            )
        self._copier = threading.Thread(target=self._copy_errors, daemon=True) if errors_by_pipe else None
        if self._copier:
            self._copier.start()
        if source is not None and source is not stdin:
            source.close()

    @property
    def pid(self):
        return self._child.pid

    def status(self):
        """Exit status, negative for a signal, None while it runs."""
        return self._child.poll()

    def output(self):
        return self.out.read_bytes()

    def errors(self):
        return self.err.read_text(errors="replace")

    def text(self):
        """Standard output, then standard error."""
        return self.out.read_text(errors="replace") + self.errors()

    def say(self, content):
        """Writes to its standard input, which was given as subprocess.PIPE."""
        self._child.stdin.write(content)
        self._child.stdin.flush()

    def settle(self, timeout=5.0):
        """Returns when all that it and its children have said is in the files; they must have ended."""
        if self._copier:
            self._copier.join(timeout)

    def _copy_errors(self):
        with self._child.stderr as pipe, open(self.err, "ab", buffering=0) as log:
            while piece := pipe.read1():
                log.write(piece)

    def wait(self, timeout, expectation="end"):
        """Exit status; Hung when it runs on for longer than timeout seconds."""
        try:
            return self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Hung(f"HUNG: did not {expectation} within {timeout:g} s: {self.describe()}") from None

    def is_busy(self):
        """Whether a program that prints nothing on its way has got past its start: CPU time tells."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12]) > BUSY_SINCE_S * os.sysconf("SC_CLK_TCK")

    def describe(self):
        return " ".join(self.argv)

    def where(self):
        """Lines that say where each process of the tree stands."""
        lines = []
        for pid in tree_of(self.pid):
            if not is_zombie(pid):
                lines += [f"{self.label}, pid {pid}: {command_of(pid)}", *("  " + line for line in stacks_of(pid))]
        return lines

    def last_lines(self, count=6):
        # Output may be data; that is left out.
        lines = [line.strip() for line in self.text().replace("\t", "  ").splitlines()]
        return [
            f"{self.label}: {line[:200]}" for line in lines if line and line.isprintable() and "\ufffd" not in line
        ][-count:]

    def kill(self):
        """kill -9 to it and all that descends from it, stopped first so that nothing is born meanwhile."""
        victims = tree_of(self.pid)
        for pid in victims:
            signal_quietly(pid, signal.SIGSTOP)
        for pid in dict.fromkeys(victims + tree_of(self.pid)):
            signal_quietly(pid, signal.SIGKILL)
        self._child.wait()

    def interrupt(self):
        """What Ctrl-C does."""
        signal_quietly(self.pid, signal.SIGINT)

    def end(self, timeout=8.0):
        """Asks it to end and waits until it has, with all it forked; Failure when it does not."""
        if self.status() is None:
            family = tree_of(self.pid)
            signal_quietly(self.pid, self.stop)
            self.wait(timeout, f"end after {self.stop.name}")
            wait_until(
                lambda: all(is_zombie(pid) for pid in family),
                f"{self.label}: the processes it forked end with it",
                timeout,
            )
        self.settle()
        return self.status()


def reap_strays(known):
    """kill -9 to our children but those of `known`, and to all that descends from them; returns their command lines."""
    strays = []
    for pid in children_of(os.getpid()):
        if pid in known:
            continue
        for each in tree_of(pid):
            if not is_zombie(each):
                strays.append(command_of(each))
                signal_quietly(each, signal.SIGKILL)
    while True:
        pids = [pid for pid in children_of(os.getpid()) if pid not in known]
        if not pids:
            return strays
        for pid in pids:
            signal_quietly(pid, signal.SIGKILL)
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass
