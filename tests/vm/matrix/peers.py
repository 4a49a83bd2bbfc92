"""Processes that play one side of a scenario."""
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import traceback

import scenarios

HERE = pathlib.Path(__file__).resolve().parent


class Peer:
    """A process that runs scenarios.ROLE(cell, say). Its events are lines on a pipe; the last is "ok" or "failed: why"."""

    def __init__(self, role, cell):
        self.role, self.events = role, []
        self._log = tempfile.TemporaryFile()
        self._lines, write_end = os.pipe()
        self._rest = b""
        if cell["flavor"] == "preload":
            environment = {**os.environ, "LD_PRELOAD": cell["library"]}
            self._pid = subprocess.Popen(
                [sys.executable, "-B", str(HERE / "peers.py"), role, json.dumps(cell), str(write_end)],
                env=environment, pass_fds=[write_end], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            ).pid  # fmt: skip
        else:
            self._pid = os.fork()
            if self._pid == 0:
                os.dup2(self._log.fileno(), 1)
                os.dup2(self._log.fileno(), 2)
                play(role, cell, write_end)
        os.close(write_end)

    def wait_for(self, event, deadline):
        """True once an event begins so; False when the process ended or the time is over before."""
        while not any(line.startswith(event) for line in self.events):
            if not self._read(deadline):
                return False
        return True

    def _read(self, deadline):
        while not select.select([self._lines], [], [], deadline.left())[0]:
            if deadline.left() == 0:
                return False
        data = os.read(self._lines, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.events += [line.decode() for line in lines]
        return bool(data)

    def result(self, deadline):
        """None when all was well, else why not."""
        self.wait_for("ok", deadline)
        failures = [line for line in self.events if line.startswith("failed")]
        if failures:
            return f"{self.role} {failures[0]}"
        if "ok" in self.events:
            return None
        if deadline.left() == 0:
            return f"{self.role} did not come to an end; events: {self.events}; it waits in {self._place()}"
        return f"{self.role} died; events: {self.events}"

    def _place(self):
        """Where the kernel has its threads."""
        stacks = []
        for task in sorted(pathlib.Path(f"/proc/{self._pid}/task").iterdir()):
            frames = [line.split()[1].split("+")[0] for line in (task / "stack").read_text().splitlines()]
            stacks.append(" < ".join(frames[:6]) or "user space")
        return "; ".join(stacks)

    def kill(self):
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)

    def end(self):
        """Kills it if need be. Returns what it wrote."""
        self.kill()
        os.waitpid(self._pid, 0)
        self._pid = None
        os.close(self._lines)
        self._log.seek(0)
        return self._log.read().decode(errors="replace")


def play(role, cell, write_end):
    """The whole life of a peer's process."""

    def say(event):
        os.write(write_end, event.replace("\n", " ").encode() + b"\n")

    os.environ.update(cell.get("environment", {}))
    try:
        getattr(scenarios, role)(cell, say)
        say("ok")
    except BaseException as error:  # pylint: disable=broad-except
        traceback.print_exc()
        say(f"failed: {type(error).__name__}: {error}")
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    play(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
