"""Processes that take part in a cell. What they tell are lines on a pipe, their events."""
import faulthandler
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import captured
import datagrams
import fork_scenarios
import hostile
import scenarios

STAGES = (scenarios, hostile, fork_scenarios, captured, datagrams)
HERE = pathlib.Path(__file__).resolve().parent


class Process:
    """A process and what it tells."""

    def __init__(self, role, lines):
        """lines: a descriptor to read the events from."""
        self.role, self.events = role, []
        self.lines, self._rest = lines, b""

    def wait_for(self, event, deadline):
        """True once an event begins so; False when the process ended or the time is over before."""
        while not any(line.startswith(event) for line in self.events):
            if not self.read(deadline):
                return False
        return True

    def read(self, deadline):
        """Takes the events that come next. False when the process ended or the time is over before."""
        while not select.select([self.lines], [], [], deadline.left())[0]:
            if deadline.left() == 0:
                return False
        data = os.read(self.lines, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.events += [line.decode() for line in lines]
        return bool(data)

    def result(self, deadline):
        """None when all was well, else why not. For processes whose last event is "ok" or "failed: why"."""
        self.wait_for("ok", deadline)
        failures = [line for line in self.events if line.startswith("failed")]
        if failures:
            return f"{self.role} {failures[0]}"
        if "ok" in self.events:
            return None
        if deadline.left() == 0:
            return f"{self.role} did not come to an end; events: {self.events}; it waits in {self.place()}"
        return f"{self.role} died; events: {self.events}"


class LocalProcess(Process):
    """One of this guest. A subclass has start(write_end), which returns the process's id."""

    def __init__(self, role):
        lines, write_end = os.pipe()
        super().__init__(role, lines)
        self._log = tempfile.TemporaryFile()
        self._pid = self.start(write_end)
        os.close(write_end)

    def place(self):
        """Where its threads are in the kernel; tells it to write where it is in Python."""
        stacks = []
        for task in sorted(pathlib.Path(f"/proc/{self._pid}/task").iterdir()):
            frames = [line.split()[1].split("+")[0] for line in (task / "stack").read_text().splitlines()]
            stacks.append(" < ".join(frames[:6]) or "user space")
        os.kill(self._pid, signal.SIGUSR1)
        time.sleep(0.3)
        return "; ".join(stacks)

    def kill(self):
        os.kill(self._pid, signal.SIGKILL)

    def end(self):
        """Kills it if need be. Returns what it wrote."""
        self.kill()
        os.waitpid(self._pid, 0)
        os.close(self.lines)
        self._log.seek(0)
        return self._log.read().decode(errors="replace")


class Peer(LocalProcess):
    """Runs ROLE(cell, say) of one of STAGES. Its last event is "ok" or "failed: why"."""

    def __init__(self, role, cell):
        self._cell = cell
        super().__init__(role)

    def start(self, write_end):
        if self._cell["flavor"] == "preload":
            return self._start_preloaded(write_end)
        pid = os.fork()
        if pid == 0:
            os.dup2(self._log.fileno(), 1)
            os.dup2(self._log.fileno(), 2)
            play(self.role, self._cell, write_end)
        return pid

    def _modes(self):
        return {"RDMAV_FORK_SAFE": "1"} if self._cell.get("fork_mode") else {}

    def _start_preloaded(self, write_end):
        return subprocess.Popen(
            [sys.executable, "-B", str(HERE / "peers.py"), self.role, json.dumps(self._cell), str(write_end)],
            env={**os.environ, **self._cell.get("environment", {}), **self._modes(), "LD_PRELOAD": self._cell["library"]},
            pass_fds=[write_end], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        ).pid  # fmt: skip


class Program(LocalProcess):
    """A program whose standard output are events."""

    def __init__(self, words):
        self._words = words
        super().__init__(os.path.basename(words[0]))

    def start(self, write_end):
        return subprocess.Popen(self._words, stdin=subprocess.DEVNULL, stdout=write_end, stderr=self._log).pid


def play(role, cell, write_end):
    """The whole life of a peer's process."""

    def say(event):
        os.write(write_end, event.replace("\n", " ").encode() + b"\n")

    faulthandler.register(signal.SIGUSR1, file=2)
    os.environ.update(cell.get("environment", {}))
    try:
        next(getattr(stage, role) for stage in STAGES if hasattr(stage, role))(cell, say)
        say("ok")
    except BaseException as error:  # pylint: disable=broad-except
        traceback.print_exc()
        say(f"failed: {type(error).__name__}: {error}")
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    play(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
