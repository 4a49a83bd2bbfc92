"""What a file of ../programs describes, and how one is put to the test."""
import dataclasses

from . import statistics
from .processes import Failure, Hung, find_program
from .run import Run, ordinary_user

MODES = ("both", "client", "server", "none", "killed")
MORE_MODES = ("restarted", "user", "crowd")  # of a long run, in no table; both sides are preloaded
MODE_TEXT = {
    "both": "both preloaded",
    "client": "client only",
    "server": "server only",
    "none": "none",
    "killed": "server killed -9",
    "restarted": "server killed -9 and started again",
    "user": "both preloaded, the client of another user",
    "crowd": "both preloaded, beside a crowd of connections",
}
CLIENT_NOTICES_S = 10  # how long a client may take to end with an error after its server was killed


class Program:
    """A program nobody here wrote, as server, client or both.

    name: as reported; title: as in the README; needs: executables; silent: sides whose processes end without running
    their exit handlers, so that no statistics can be had of them; servers_talk: its servers are connected with each
    other; clients_talk: its clients are, or one with itself; hands_over: its processes send each other connections, or
    execute programs on them, so that these become the kernel's; may_die_of: signals that may end its client when the
    server was killed; kernel_clients: how many connections of its clients are the kernel's even when both ends are
    preloaded; modes: those in which it is tried; crowd: how many connections `port` of its server holds beside those of
    the clients, 0 for mode "crowd" makes no sense; kernel_because: why the library leaves all its connections to the
    kernel then, empty where it must not; few_by_ring: but for so many.
    """

    name = ""
    title = ""
    needs = ()
    silent = ()
    kernel_because = ""
    servers_talk = False
    clients_talk = False
    hands_over = False
    may_die_of = ()
    kernel_clients = 0
    few_by_ring = 0
    crowd = 0
    not_in = ()  # modes that its test is not made for, such as a client's files that only the harness's user may read
    port = None  # where its servers listen, or one of them
    modes = MODES + MORE_MODES

    def start(self, run):
        """Starts the servers; returns when a client may come."""
        raise NotImplementedError

    def exchange(self, run):
        """Runs the clients, checks what they say and what arrived; Failure when anything is wrong."""
        raise NotImplementedError

    def endless(self, run):
        """Starts a client that would run for a minute or more; returns it when data is on its way."""
        raise NotImplementedError

    def check_lost(self, finished):
        """Called with an endless client whose server was killed: it must tell that something went wrong."""
        if finished.status == 0:
            raise Failure("the client ended with status 0 although its server was killed")

    def missing(self):
        """Executables that are not installed."""
        return [name for name in self.needs if find_program(name) is None]


@dataclasses.dataclass
class Outcome:
    """What one program did in one mode. verdict: "ok", "not ok" or "skip"; why: reason of the last two."""

    program: str
    mode: str
    verdict: str
    why: str = ""

    @property
    def label(self):
        return f"{self.program}, {MODE_TEXT[self.mode]}"


def why_not(program, mode):
    """Why a program cannot be tried in a mode here; "" when it can."""
    missing = program.missing()
    if missing:
        return f"not installed: {', '.join(missing)}"
    if mode == "user" and ordinary_user() is None:
        return "another user's processes need root"
    return ""


def try_program(program, mode, library):
    """Runs one program in one mode. Never raises for what the program does."""
    why = why_not(program, mode)
    if why:
        return Outcome(program.name, mode, "skip", why)
    ours = library.environment()
    run = Run(
        program.name,
        server=ours if mode not in ("client", "none") else {},
        client=ours if mode not in ("server", "none") else {},
        client_user=ordinary_user() if mode == "user" else None,
    )
    try:
        program.start(run)
        _WAYS.get(mode, _exchange)(program, run)
        if library.path is not None:
            statistics.check_paths(run, mode, program)
    except Hung as failure:
        why = "\n".join([str(failure), *run.last_lines(), *run.where()])
    except Failure as failure:
        why = "\n".join([str(failure), *run.last_lines()])
    except (OSError, ValueError, LookupError, TypeError) as error:
        # Also output that cannot be understood, which is a failure of the program.
        why = "\n".join([f"{type(error).__name__}: {error}", *run.last_lines()])
    strays = run.close()
    if strays and not why and mode != "killed":
        why = f"left behind: {'; '.join(strays)}"
    return Outcome(program.name, mode, "not ok" if why else "ok", why)


def _exchange(program, run):
    program.exchange(run)
    run.end_servers()


def _restart_servers(program, run):
    """The first servers have had a connection when they are killed."""
    if program.port is not None:
        run.begin_crowd(program.port, 1).end()
    run.restart_servers()
    _exchange(program, run)


def _exchange_in_a_crowd(program, run):
    crowd = run.begin_crowd(program.port, program.crowd)
    program.exchange(run)
    if crowd.end(timeout=60) != 0:
        raise Failure("connections of a crowd were closed")
    run.end_servers()


def _kill_servers_midway(program, run):
    client = program.endless(run)
    if client.status() is not None:
        raise Failure(f"the client ended with {client.status()} before its server was killed")
    run.kill_servers()
    finished = run.finish(client, status=None, timeout=CLIENT_NOTICES_S, signals=program.may_die_of)
    program.check_lost(finished)


_WAYS = {"killed": _kill_servers_midway, "restarted": _restart_servers, "crowd": _exchange_in_a_crowd}
