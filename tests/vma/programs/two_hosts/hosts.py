"""Two network namespaces, joined by a cable (a veth pair) or by a bridge in a third one, which may lose packets."""
import os
import pathlib
import subprocess
import typing

HERE, THERE, BRIDGE = "here", "there", "bridge"
IPV4 = {HERE: "10.9.0.1", THERE: "10.9.0.2"}
IPV6 = {HERE: "fd09::1", THERE: "fd09::2"}
NETWORKS = ("cable", "bridge", "lossy")
LOST_PER_MILLE = 50
KERNELS = ("datagrams", "packets")  # of UDP sockets of the kernel; all between the hosts that the kernel's IP saw


class Packets(typing.NamedTuple):
    """What a host's interface and its kernel have counted: packets of rings, and KERNELS."""

    rings_in: int
    rings_out: int
    kernels_in: int
    kernels_out: int

    def since(self, before):
        return Packets(*(now - then for now, then in zip(self, before)))


def _run(*argv, **options):
    subprocess.run(list(map(str, argv)), check=True, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)


def why_not():
    """Why there can be no namespaces here; "" when there can."""
    name = f"rs-probe-{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "netns", "delete", name)
    except (OSError, subprocess.CalledProcessError):
        return "network namespaces need root and iproute2"
    return ""


class Hosts:
    """Made when entered, removed when left.

    The hosts are 10.9.0.1 and fd09::1 ("here", where clients run), 10.9.0.2 and fd09::2 ("there"). network: one of
    NETWORKS; "lossy" is a bridge that loses LOST_PER_MILLE of the packets in each direction.
    """

    def __init__(self, network):
        self.network = network
        self._names = {host: f"rs-{host}-{os.getpid()}" for host in (HERE, THERE, BRIDGE)}
        self._keepers = {}

    def __enter__(self):
        try:
            for host in (HERE, THERE):
                self._add(host)
            if self.network == "cable":
                self._join((HERE, "eth0"), (THERE, "eth0"))
            else:
                self._add_bridge()
            for host in (HERE, THERE):
                self._ip(host, "address", "add", f"{IPV4[host]}/24", "dev", "eth0")
                self._ip(host, "address", "add", f"{IPV6[host]}/64", "dev", "eth0", "nodad")
                self._ip(host, "link", "set", "eth0", "up")
                self._ip(host, "route", "add", "224.0.0.0/4", "dev", "eth0")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for keeper in self._keepers.values():
            keeper.kill()
            keeper.wait()
        for host in self._keepers:
            subprocess.run(["ip", "netns", "delete", self._names[host]], stderr=subprocess.DEVNULL, check=False)

    def keepers(self):
        """Pids of processes of ours that are there as long as the hosts."""
        return frozenset(keeper.pid for keeper in self._keepers.values())

    def inside(self, host, argv, environment=None, user=None):
        """The command that runs argv on a host; environment: {name: value}, not for what brings it there; user: who it
        is, a pwd.struct_passwd."""
        words = [f"{name}={value}" for name, value in (environment or {}).items()]
        who = [] if user is None else ["--setgid", str(user.pw_gid), "--setuid", str(user.pw_uid)]
        return ["nsenter", f"--net=/run/netns/{self._names[host]}", *who, *(["env", *words] if words else []), *argv]

    def is_bound(self, host, port):
        """Whether a UDP socket of the host has the port."""
        suffix = f":{port:04X}"
        return any(
            row.split()[1].endswith(suffix)
            for table in ("udp", "udp6")
            for row in self._read(host, table).splitlines()[1:]
        )

    def is_listening(self, host, port):
        """Whether a TCP socket of the host listens on the port."""
        suffix = f":{port:04X}"
        rows = (row.split() for table in ("tcp", "tcp6") for row in self._read(host, table).splitlines()[1:])
        return any(row[1].endswith(suffix) and row[3] == "0A" for row in rows)

    def packets(self, host, kernels="datagrams"):
        """kernels: one of KERNELS. What the rings carried is what the interface counted and the kernel's IP did not; ARP is in there, too."""
        links = {}
        for line in self._read(host, "dev").splitlines()[2:]:
            name, _, counters = line.partition(":")
            fields = counters.split()
            links[name.strip()] = int(fields[1]), int(fields[9])
        ip, ip6 = self._counters(host, "snmp"), self._counters6(host)
        fragments = ip["Ip", "FragCreates"] - ip["Ip", "FragOKs"] + ip6["Ip6FragCreates"] - ip6["Ip6FragOKs"]
        wire_in, wire_out = links["eth0"]
        local = links["lo"][0]
        ip_in = ip["Ip", "InReceives"] + ip6["Ip6InReceives"] - local
        ip_out = ip["Ip", "OutRequests"] + ip6["Ip6OutRequests"] - local + fragments
        datagrams_in = ip["Udp", "InDatagrams"] + ip6["Udp6InDatagrams"]
        datagrams_out = ip["Udp", "OutDatagrams"] + ip6["Udp6OutDatagrams"]
        by_kernel = (ip_in, ip_out) if kernels == "packets" else (datagrams_in, datagrams_out)
        return Packets(wire_in - ip_in, wire_out - ip_out, *by_kernel)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _add(self, host):
        _run("ip", "netns", "add", self._names[host])
        # Somebody who is there, so that /proc shows the namespace.
        self._keepers[host] = subprocess.Popen(self.inside(host, ["sleep", "infinity"]), stdin=subprocess.DEVNULL)
        self._ip(host, "link", "set", "lo", "up")

    def _ip(self, host, *words):
        _run("ip", "-n", self._names[host], *words)

    def _join(self, one, other):
        _run("ip", "link", "add", one[1], "netns", self._names[one[0]], "type", "veth",
             "peer", "name", other[1], "netns", self._names[other[0]])  # fmt: skip

    def _add_bridge(self):
        self._add(BRIDGE)
        self._ip(BRIDGE, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        self._ip(BRIDGE, "link", "set", "br0", "up")
        for host in (HERE, THERE):
            self._join((host, "eth0"), (BRIDGE, f"to-{host}"))
            self._ip(BRIDGE, "link", "set", f"to-{host}", "master", "br0", "up")
        if self.network == "lossy":
            chains = "".join(
                f"chain from_{host} {{ type filter hook ingress device to-{host} priority 0; "
                f"meta protocol {{ ip, ip6 }} numgen random mod 1000 < {LOST_PER_MILLE} drop; }}\n"
                for host in (HERE, THERE)
            )
            _run(*self.inside(BRIDGE, ["nft", f"table netdev loss {{ {chains} }}"]))

    def _read(self, host, name):
        return pathlib.Path(f"/proc/{self._keepers[host].pid}/net/{name}").read_text()

    def _counters(self, host, name):
        """{(protocol, counter): value}: lines of names, each followed by a line of values."""
        lines = [line.split() for line in self._read(host, name).splitlines()]
        return {
            (names[0].rstrip(":"), counter): int(value)
            for names, values in zip(lines[::2], lines[1::2])
            for counter, value in zip(names[1:], values[1:])
        }

    def _counters6(self, host):
        return {name: int(value) for name, value in map(str.split, self._read(host, "snmp6").splitlines())}
