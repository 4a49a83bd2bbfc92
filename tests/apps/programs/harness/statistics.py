"""The line that a preloaded process prints at its end under RINGSOCK_STATS=1: which way its connections went."""
import re
import typing

from .processes import Failure

# rsrun(1) has the format; a process without sockets says nothing.
LINE = re.compile(r"ringsock\[\d+ [^\]]*\]: (\d+) connections by ring \([^)]*\), (\d+) by kernel TCP(?: \(([^)]*)\))?")


# Sides that are preloaded and reach their exit handlers.
SIDES_SEEN = {
    "both": ("server", "client"),
    "client": ("client",),
    "server": ("server",),
    "none": (),
    "killed": ("client",),
    "restarted": ("server", "client"),
    "user": ("server", "client"),
    "crowd": ("server", "client"),
}
BOTH_SIDES = ("both", "killed", "restarted", "user", "crowd")


class Connections(typing.NamedTuple):
    """Over the ring, over the kernel's TCP and why; lines: of how many processes."""

    ring: int
    kernel: int
    lines: int
    reasons: tuple = ()


HANDED_OVER = re.compile(r"(\d+) handed over")


def handed_over(reasons):
    """How many of the kernel's connections were rings before."""
    return sum(int(count) for reason in reasons for count in HANDED_OVER.findall(reason))


def connections(texts):
    """Connections, added up over the standard errors of some processes."""
    found = [match for text in texts for match in LINE.findall(text)]
    return Connections(
        sum(int(ring) for ring, _, _ in found),
        sum(int(kernel) for _, kernel, _ in found),
        len(found),
        tuple(reason for _, _, reason in found if reason),
    )


def check_paths(run, mode, program):
    """Failure unless every connection went the way the mode demands: a fall-back that nobody asked for is one too."""
    for side in SIDES_SEEN[mode]:
        if side in program.silent:
            continue
        talk = program.servers_talk if side == "server" else program.clients_talk
        seen = connections(run.errors_of(side))
        counts = f"{side}: {seen.ring} connections over the ring, {seen.kernel} over the kernel {seen.reasons or ''}"
        if seen.lines == 0 and program.kernel_because:
            continue  # no socket was even considered
        if seen.lines == 0:
            raise Failure(f"{side}: no line of statistics, so the library was not loaded or did not live to its end")
        if mode in BOTH_SIDES and not program.kernel_because:
            # Whoever tries to connect again after the server's death may try the kernel.
            kernel = seen.kernel - (handed_over(seen.reasons) if program.hands_over else 0)
            wanted = program.kernel_clients if side == "client" else 0
            if seen.ring == 0 or (kernel != wanted and mode != "killed"):
                raise Failure(f"both sides are preloaded but a connection fell back to the kernel ({counts})")
        elif seen.kernel == 0 and not (program.kernel_because or program.servers_talk):
            raise Failure(f"no connection went over the kernel ({counts})")
        elif seen.ring > (program.few_by_ring if mode in BOTH_SIDES else 0) and not talk:
            raise Failure(f"only TCP was possible, yet ({counts})")
