"""The line that a preloaded process prints at its end under RINGSOCK_STATS=1: which way its connections went."""
import re
from .processes import Failure

# What is read of it: the words before the counts may change, the counts are name=number.
LINE = re.compile(r"^.*\bringsock\b.*\brdma=(\d+)\b.*\btcp=(\d+)\b.*$", re.M)


def connections(texts):
    """(over the ring, over the kernel's TCP, lines seen), added up over the standard errors of some processes."""
    found = [match for text in texts for match in LINE.findall(text)]
    return sum(int(ring) for ring, _ in found), sum(int(kernel) for _, kernel in found), len(found)


def check_paths(run, mode, silent):
    """Failure unless every connection went the way the mode demands: a fall-back that nobody asked for is one too."""
    preloaded = {"both": ("server", "client"), "client": ("client",), "server": ("server",), "none": ()}[mode]
    for side in preloaded:
        if side in silent:
            continue
        ring, kernel, lines = connections(run.errors_of(side))
        counts = f"{side}: {ring} connections over the ring, {kernel} over the kernel"
        if lines == 0:
            raise Failure(f"{side}: no line of statistics, so the library was not loaded or did not live to its end")
        if mode == "both" and (ring == 0 or kernel != 0):
            raise Failure(f"both sides are preloaded but a connection fell back to the kernel ({counts})")
        if mode != "both" and (ring != 0 or kernel == 0):
            raise Failure(f"the other side is not preloaded, yet ({counts})")
