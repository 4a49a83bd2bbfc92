story a SYN that asks for ECN gets it
0 accept askecn
0 > S.E 0:0 ack 1 mss 1000
0.010 < . 1:1 ack 1
0.010 ecn 1
0.010 write 500
0.010 > P. 1:501 ack 1 ect
0.020 < . 1:1 ack 501

story a plain SYN gets none
0 accept
0 > S. 0:0 ack 1 mss 1000
0.010 < . 1:1 ack 1
0.010 ecn 0
0.010 write 500
0.010 > P. 1:501 ack 1
0.020 < . 1:1 ack 501

story our SYN asks when it is told to
0 connect askecn
0 > SEW 0:0 mss 1000
0.010 < S.E 0:0 ack 1 mss 1000
0.010 > . 1:1 ack 1
0.010 ecn 1

story a repeated SYN does not ask: some routers drop such SYNs
0 connect askecn
0 > SEW 0:0 mss 1000
1 > S 0:0 mss 1000
1.010 < S. 0:0 ack 1 mss 1000
1.010 > . 1:1 ack 1
1.010 ecn 0

story the answer to a repeated SYN may be that to the first one
0 connect askecn
0 > SEW 0:0 mss 1000
1 > S 0:0 mss 1000
1.010 < S.E 0:0 ack 1 mss 1000
1.010 > . 1:1 ack 1
1.010 ecn 1

story a SYN-ACK that reflects both bits is no agreement
0 connect askecn
0 > SEW 0:0 mss 1000
0.010 < S.EW 0:0 ack 1 mss 1000
0.010 > . 1:1 ack 1
0.010 ecn 0

story repeated data is not ECN-capable
0 begin ecn nosack
0 write 1000
0 > P. 1:1001 ack 1 ect
1 > P. 1:1001 ack 1
1.010 < . 1:1 ack 1001

story a FIN without data and acknowledgements are not ECN-capable
0 begin ecn
0 < P. 1:101 ack 1
0 > . 1:1 ack 101
0 shutdown
0 > F. 1:1 ack 101
0.010 < . 101:101 ack 2

story CE is echoed until the peer has reduced
0 begin ecn
0 < . 1:101 ack 1 ce
0 > .E 1:1 ack 101
0 < . 101:201 ack 1
0 > .E 1:1 ack 201
0 < .W 201:301 ack 1
0 > . 1:1 ack 301

story CE with CWR is a new congestion
0 begin ecn
0 < . 1:101 ack 1 ce
0 > .E 1:1 ack 101
0 < .W 101:201 ack 1 ce
0 > .E 1:1 ack 201

story CE without an agreement is ignored
0 begin
0 < . 1:101 ack 1 ce
0 > . 1:1 ack 101

story an echo reduces the window once for a round trip and is answered by CWR
0 begin ecn
0 write 20000
0 > P. 1:10001 ack 1 ect
0.010 < .E 1:1 ack 1001
0.010 cwnd 7000
0.010 < .E 1:1 ack 2001
0.010 cwnd 7000
0.010 < .E 1:1 ack 4001
0.010 > .W 10001:11001 ack 1 ect
0.010 cwnd 7000
0.020 < . 1:1 ack 11001
0.020 > P. 11001:18001 ack 1 ect
0.030 < .E 1:1 ack 18001
0.030 cwnd 5270
0.030 > .W 18001:19001 ack 1 ect
0.030 > P. 19001:20001 ack 1 ect
0.040 < . 1:1 ack 20001

story an echo without an agreement is ignored
0 begin
0 write 2000
0 > P. 1:2001 ack 1
0.010 < .E 1:1 ack 2001
0.010 cwnd 10000
