"""The programs, in the order in which they are tried and reported."""
from . import (
    apache,
    haproxy,
    iperf3,
    java_nio,
    memcached,
    netcat,
    nginx,
    openssh,
    postgresql,
    python_peers,
    qperf,
    redis,
    socat,
    sockperf,
)


def all_programs():
    """A fresh object for each."""
    return [
        redis.Redis(),
        memcached.Memcached(),
        nginx.Nginx(),
        nginx.ApacheBench(),
        apache.Apache(),
        haproxy.Haproxy(),
        iperf3.Iperf3(),
        netcat.Netcat(),
        socat.Socat(),
        openssh.OpenSsh(),
        postgresql.PostgreSql(),
        python_peers.HttpServer(),
        python_peers.Asyncio(),
        python_peers.Multiprocessing(),
        java_nio.JavaNio(),
        qperf.Qperf(),
        sockperf.Sockperf(),
    ]
