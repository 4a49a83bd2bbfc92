"""The suites, in the order in which they are run and reported."""
from . import libuv, node, perl, python, redis


def all_suites():
    """A fresh object for each."""
    return [libuv.Libuv(), libuv.LibuvUdp(), node.Node(), node.NodeUdp(), perl.Perl(), redis.Redis(), python.Python()]
