"""TCP programs over rings: those of the table of librspreload, between two hosts."""
from programs import all_programs as table_programs
from two_hosts.table_program import TableProgram

SETTINGS = {"VMA_TCP": "on"}


def all_programs():
    """A fresh object for each, in the order in which they are tried and reported."""
    return [TableProgram(inner, settings=SETTINGS) for inner in table_programs()]
