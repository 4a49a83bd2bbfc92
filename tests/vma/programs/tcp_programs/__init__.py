"""TCP programs over rings: those of the table of librspreload, between two hosts."""
from programs import all_programs as table_programs
from two_hosts.table_program import TableProgram

SETTINGS = {"VMA_TCP": "on"}
UNHURT = ("both", "client", "server", "none")
FORKS = "its connections are used by processes that it forks"
# What a program does otherwise than most.
DIFFERENCES = {
    # Each transfer has a connection of its own, which the kernel makes and ends.
    "ab": {"kernel_most": 8.0},
    # How far it has come is asked from outside of the hosts.
    "memcached": {"modes": UNHURT},
    # shutdown(2) at the end of its input gives the connection back to the kernel.
    "netcat": {"modes": UNHURT},
    "apache2": {"kernel_because": {"server": "its workers are another user's"}},
    "socat": {"kernel_because": {"server": FORKS}},
    "openssh": {"kernel_because": {"server": FORKS}},
    "postgresql": {"kernel_because": {"server": FORKS}},
}


def all_programs():
    """A fresh object for each, in the order in which they are tried and reported."""
    return [
        TableProgram(inner, settings=SETTINGS, **DIFFERENCES.get(inner.name, {})) for inner in table_programs()
    ]
