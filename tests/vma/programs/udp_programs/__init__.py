"""The programs, in the order in which they are tried and reported."""
from . import chrony, dns, dtls, iperf3, memcached, netcat, qperf, quic, socat, sockperf


def all_programs():
    """A fresh object for each."""
    return [
        sockperf.PingPong(),
        sockperf.Throughput(),
        sockperf.TwoClients(),
        sockperf.Multicast(),
        sockperf.LoadVma(),
        iperf3.Iperf3(),
        netcat.Netcat(),
        socat.Socat(),
        dns.Dns(),
        dns.LossyDns(),
        qperf.Qperf(),
        memcached.Memcached(),
        chrony.Chrony(),
        dtls.GnuTls(),
        dtls.OpenSsl(),
        quic.Quic(),
        quic.BridgedQuic(),
        quic.LossyQuic(),
    ]
