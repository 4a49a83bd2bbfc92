"""The programs, in the order in which they are tried and reported."""
from . import (
    apache,
    files,
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
    services,
    socat,
    sockperf,
    web,
)


def more_programs():
    """Those that are run with --long only: a fresh object for each."""
    return [
        web.Lighttpd(),
        web.Varnish(),
        web.Squid(),
        web.Stunnel(),
        web.Nghttp2(),
        web.NginxHttp2(),
        web.PhpFpm(),
        web.Uvicorn(),
        web.Node(),
        files.Rsync(),
        files.Vsftpd(),
        files.Git(),
        files.Subversion(),
        files.Distcc(),
        services.MariaDb(),
        services.Mosquitto(),
        services.Grpc(),
        services.SmtpTools(),
        services.Unbound(),
        services.Sipp(),
        services.OpenMpi(),
        services.Iperf2(),
        services.Erlang(),
    ]


def all_programs():
    """Those of the README's table: a fresh object for each."""
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
