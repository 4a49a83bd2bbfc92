"""One run of one program between the hosts."""
import itertools
import os

from harness.processes import wait_until
from harness.run import Run

from .hosts import HERE, THERE

HOST_OF = {"server": THERE, "service": THERE, "client": HERE, "tool": HERE}


class HostRun(Run):
    """A Run whose servers are on one host and whose clients are on the other."""

    _ports = itertools.count(20000)  # the hosts are ours alone

    def __init__(self, name, hosts, **sides):
        super().__init__(name, **{side: dict(environment) for side, environment in sides.items()})
        self.hosts = hosts

    def loaded_by_itself(self):
        """The library of both sides, which from now on is not preloaded; None on the kernel."""
        libraries = [environment.pop("LD_PRELOAD", None) for environment in self._sides.values()]
        return next((library for library in libraries if library), None)

    def free_port(self):
        return next(self._ports)

    def serve_udp(self, argv, port, **options):
        """Starts a server and returns it once it has the UDP port."""
        return self.serve(argv, ready=lambda _: self.hosts.is_bound(THERE, port), **options)

    def serve_tcp(self, argv, port, **options):
        """The same for a server that listens on a TCP port."""
        return self.serve(argv, ready=lambda _: self.hosts.is_listening(THERE, port), **options)

    def begin_udp(self, argv, port, **options):
        """Starts a client that receives on a port of its own."""
        client = self.begin(argv, **options)
        wait_until(lambda: self.hosts.is_bound(HERE, port) or self._refuse_dead(client), f"{argv[0]} has a port")
        return client

    def _start(self, side, argv, *, user=None, **options):
        options.setdefault("label", os.path.basename(argv[0]))
        words = self.hosts.inside(HOST_OF[side], [str(word) for word in argv], self._sides[side], user)
        self._sides[side], preload = {}, self._sides[side]
        try:
            return super()._start(side, words, **options)
        finally:
            self._sides[side] = preload
