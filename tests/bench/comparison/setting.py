"""Where the build is, which CPUs take part, and what this machine lacks."""
import dataclasses
import os
import pathlib
import resource

from harness.processes import find_program
from harness.run import Library, Run

from .results import OURS

PACKAGES = {
    "ucx_perftest": "ucx-utils",
    "redis-server": "redis-server",
    "redis-benchmark": "redis-tools",
    "redis-cli": "redis-tools",
    "nginx": "nginx-light",
    "wrk": "wrk",
    "perf": "linux-perf",
}
DESCRIPTORS = 65536  # wanted for a process, more than any measurement needs


@dataclasses.dataclass(frozen=True)
class Setting:
    """build: the folder of a build that is installed into build/stage; cpus: of the server and of the client; seconds:
    length of a run of a program; library_settings: environment that goes with the library, {name: value}."""

    build: pathlib.Path
    cpus: tuple
    seconds: float
    library_settings: dict = dataclasses.field(default_factory=dict)

    @property
    def library(self):
        return self.build / "stage/lib/rsocket/librspreload.so"

    def bench_program(self, name):
        return self.build / "tests/bench" / name

    def environment(self, side):
        """Of a program whose connections go the way of that side."""
        return Library(self.library, self.library_settings).environment() if side == OURS else {}

    def run(self, name, side):
        """A new Run with both ends the same way; the caller closes it."""
        environment = self.environment(side)
        return Run(f"peers-{name}", server=environment, client=environment)

    def missing_programs(self, *names):
        """Why these cannot be run, with the command that installs them; empty when all are there."""
        packages = {PACKAGES[name] for name in names if find_program(name) is None}
        return f"not installed: apt-get install {' '.join(sorted(packages))}" if packages else ""

    def missing_parts(self, *bench_programs):
        """The same for the library and for programs of tests/bench."""
        paths = [self.library, *map(self.bench_program, bench_programs)]
        missing = [str(path) for path in paths if not path.exists()]
        return f"not built: {', '.join(missing)} (./check gcc builds all)" if missing else ""


def patient_connections(folder):
    """Environment in which a client waits a second for the ring of a server that has no CPU, before it takes the
    kernel's TCP. folder: pathlib.Path of a new folder, which all users may enter."""
    folder.chmod(0o755)
    (folder / "connect_patience").write_text("1000\n")
    return {"RINGSOCK_CONFIG_DIR": str(folder)}


def default_cpus():
    """The first two CPUs that this process may use; the same one twice where there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[min(1, len(allowed) - 1)])


def raise_descriptor_limit():
    """As many descriptors as the measurements need, for this process and all that it starts, or as many as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= DESCRIPTORS:
        return
    for new_hard in (max(hard, DESCRIPTORS), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, new_hard), new_hard))
            return
        except (ValueError, OSError):
            pass


def missing_descriptors(needed):
    """Why a process cannot have so many descriptors; empty when it can."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return ""
    return f"needs {needed} descriptors a process, RLIMIT_NOFILE allows {hard} (ulimit -Hn); CAP_SYS_RESOURCE raises it"
