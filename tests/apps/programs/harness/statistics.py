"""The line that a preloaded process prints at its end under RINGSOCK_STATS=1: which way its connections went."""
import re
import typing

from .processes import Failure

# What is read of it: the words before the counts may change, the counts are name=number.
LINE = re.compile(r"^.*\bringsock\b.*\brdma=(\d+)\b.*\btcp=(\d+)\b.*$", re.M)


class Connections(typing.NamedTuple):
    """Over the ring, over the kernel's TCP; lines: of how many processes."""
    ring: int
    kernel: int
    lines: int


def connections(texts):
    """Connections, added up over the standard errors of some processes."""
    found = [match for text in texts for match in LINE.findall(text)]
    return Connections(sum(int(ring) for ring, _ in found), sum(int(kernel) for _, kernel in found), len(found))


def check_paths(run, mode, program):
    """Failure unless every connection went the way the mode demands: a fall-back that nobody asked for is one too."""
    for side in {"both": ("server", "client"), "client": ("client",), "server": ("server",), "none": ()}[mode]:
        if side in program.silent:
            continue
        seen = connections(run.errors_of(side))
        counts = f"{side}: {seen.ring} connections over the ring, {seen.kernel} over the kernel"
        if seen.lines == 0:
            raise Failure(f"{side}: no line of statistics, so the library was not loaded or did not live to its end")
        if mode == "both" and not program.kernel_because:
            if seen.ring == 0 or seen.kernel != 0:
                raise Failure(f"both sides are preloaded but a connection fell back to the kernel ({counts})")
        elif seen.ring != 0:
            raise Failure(f"only TCP was possible, yet ({counts})")
