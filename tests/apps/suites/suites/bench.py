"""What a suite is made of, how a test of it is run, and what its two results mean together."""
import dataclasses
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from harness import processes
from harness.processes import SEARCH_PATH, children_of, is_zombie, tree_of

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
LAST_LINES = 25


@dataclasses.dataclass
class Test:
    """argv is run in `folder` with `environment` on top of a small one; timeout: seconds."""

    name: str
    argv: list
    folder: pathlib.Path
    environment: dict = dataclasses.field(default_factory=dict)
    timeout: float = 60


class Suite:
    """name: as reported; title: what it is; needs: executables without which it is skipped."""

    name = ""
    title = ""
    needs = ()
    uses_udp = False  # it is run over libvma
    limits = {}  # {name of a test: limit of the library, as documented, for which it cannot pass}

    def prepare(self, work):
        """Fetches and builds in `work`, unless an earlier run did; Failure when that does not work."""
        raise NotImplementedError

    def tests(self):
        """Tests, in the order in which they are run."""
        raise NotImplementedError

    def judge(self, status, text):
        """{part of the test: PASSED, FAILED or SKIPPED} of an exit status and what was printed; "" is the test as a whole."""
        raise NotImplementedError


@dataclasses.dataclass
class Result:
    """What one run of a test came to. parts: as of Suite.judge(); where: stacks of what hung."""

    parts: dict
    status: int | None
    text: str
    seconds: float
    where: list

    def last_lines(self):
        return [line[:200] for line in self.text.splitlines()[-LAST_LINES:]] + self.where


def compare(ours, kernels, limit=""):
    """(verdict, why) of a test's results over the library and without it. limit: why it need not pass over the library."""
    failed, kernels_failed = ({part for part, verdict in each.parts.items() if verdict == FAILED} for each in (ours, kernels))
    broken = sorted(failed - kernels_failed)
    if broken and limit:
        return "skip", f"a documented limit: {limit}"
    if broken:
        parts = [part for part in broken if part]
        how = f"killed after {ours.seconds:.0f} s" if ours.status is None else f"ended with {ours.status}"
        return "not ok", f"{how}{': ' if parts else ''}{'; '.join(parts[:5])}{' ...' if len(parts) > 5 else ''}"
    verdicts = set(kernels.parts.values())
    if FAILED in verdicts:
        failed = [part for part, verdict in kernels.parts.items() if verdict == FAILED and part]
        return "skip", f"fails without the library, too{': ' if failed else ''}{'; '.join(failed[:3])}"
    if PASSED not in verdicts:
        return "skip", "it skips itself"
    return "ok", ""


class Bench:
    """Runs tests, each in a network namespace of its own, and ends all that they leave behind. Threads: one."""

    def __init__(self, suite, library, work):
        self._suite = suite
        self._library = library
        self._work = work
        # Whose namespace it is decides who may set it up.
        self._unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]

    def run(self, test, *, preloaded):
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"ringsock-suite-{self._suite.name}-"))
        folder.chmod(0o1777)
        log = folder / "output"
        library = [f"LD_PRELOAD={self._library}"] if preloaded else []
        environment = {"PATH": SEARCH_PATH, "HOME": str(folder), "TMPDIR": str(folder), "LC_ALL": "C.UTF-8"}
        environment |= {name: value.replace("@FOLDER@", str(folder)) for name, value in test.environment.items()}
        started = time.monotonic()
        with open(log, "wb") as out:
            child = subprocess.Popen(
                [*self._unshare, "sh", "-c", 'ip link set lo up && exec env "$@"', "sh", *library, *map(str, test.argv)],
                cwd=test.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        status, where = None, []
        try:
            status = child.wait(test.timeout)
        except subprocess.TimeoutExpired:
            where = self._stacks(child.pid) if preloaded else []
            for pid in tree_of(child.pid):
                processes.signal_quietly(pid, 9)
            child.wait()
        seconds = time.monotonic() - started
        processes.reap_strays(())
        text = log.read_text(errors="replace")
        parts = {"": FAILED} if status is None else {}
        parts |= self._suite.judge(status, text)
        shutil.rmtree(folder, ignore_errors=True)
        return Result(parts, status, text, seconds, where)

    @staticmethod
    def _stacks(root):
        """Where each process of a test that hangs stands, as lines."""
        lines = []
        for pid in [*tree_of(root), *(pid for pid in children_of(os.getpid()) if pid != root)]:
            if not is_zombie(pid):
                lines += [f"pid {pid}: {processes.command_of(pid)[:150]}"]
                lines += ["  " + line for line in processes.stacks_of(pid)]
        return lines
