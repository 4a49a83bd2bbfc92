# ECN (RFC 3168), urgent data (RFC 6093, RFC 9293, 3.8.5), path MTU (RFC 1191, 4821, 5927), keepalive (RFC 9293, 3.8.4).

# RFC 3168, 6.1.5: CE of a segment outside the window is ignored
story CE of a segment outside the window is not echoed
0 begin ecn
0 < . 90001:90101 ack 1 ce
0 > . 1:1 ack 1
0 < . 1:101 ack 1
0 > . 1:1 ack 101

# RFC 3168, 6.1.2: CWR after a reduction of any cause
story the first new data after a fast retransmit has CWR
0 begin ecn
0 write 20000
0 > P. 1:10001 ack 1 ect
0.100 < . 1:1 ack 1 sack 1001-10001
0.100 > . 1:1001 ack 1
0.100 > .W 10001:11001 ack 1 ect
0.100 > P. 11001:16001 ack 1 ect
0.200 < . 1:1 ack 16001
0.200 > P. 16001:20001 ack 1 ect
0.300 < . 1:1 ack 20001

# RFC 3168, 6.1.2: after a time-out as well
story the first new data after a time-out has CWR
0 begin ecn nosack
0 write 1000
0 > P. 1:1001 ack 1 ect
1 > P. 1:1001 ack 1
1.100 < . 1:1 ack 1001
1.100 write 500
1.100 > P.W 1001:1501 ack 1 ect
1.200 < . 1:1 ack 1501

# RFC 3168, 6.1.2: once in a window of data, whatever it was
story an echo during a recovery reduces no second time
0 begin ecn
0 write 20000
0 > P. 1:10001 ack 1 ect
0.100 < .E 1:1 ack 1 sack 1001-4001
0.100 > . 1:1001 ack 1
0.100 ssthresh 7000
0.110 < .E 1:1 ack 1 sack 1001-5001
0.110 > .W 10001:11001 ack 1 ect
0.110 ssthresh 7000
0.200 < . 1:1 ack 10001
0.200 > P. 11001:17001 ack 1 ect
0.200 ssthresh 7000
0.300 < . 1:1 ack 17001
0.300 > P. 17001:20001 ack 1 ect
0.400 < . 1:1 ack 20001

# RFC 3168, 6.1.2 with RFC 5681, 3.1: slow start after the time-out, the threshold is reduced once
story an echo before a time-out does not hold slow start back
0 begin ecn nosack
0 write 10000
0 > P. 1:10001 ack 1 ect
0.100 < .E 1:1 ack 1001
0.100 ssthresh 7000
0.400 > . 1001:2001 ack 1
0.400 ssthresh 7000
0.400 cwnd 1000
0.500 < . 1:1 ack 2001
0.500 cwnd 2000
0.500 > P. 2001:4001 ack 1
0.600 < . 1:1 ack 10001

# RFC 3168, 6.1.6: window probes are not ECN-capable
story a probe of a closed window is not ECN-capable
0 begin ecn closedwindow
0 write 100
1 > . 0:0 ack 1
1.010 < . 1:1 ack 1 win 1000
1.010 > P. 1:101 ack 1 ect
1.020 < . 1:1 ack 101

# RFC 3168, 6.1.3: each ACK has the echo, until CWR
story data of ours carries the echo
0 begin ecn
0 < P. 1:101 ack 1 ce
0 > .E 1:1 ack 101
0 write 100
0 > P.E 1:101 ack 101 ect
0.010 < P.W 101:201 ack 101
0.050 > . 101:101 ack 201

# RFC 6093, 3.1: the pointer may be ahead of the data
story an urgent mark is ahead of the data
0 begin
0 < P.U 1:11 ack 1 urg 100
0 > . 1:1 ack 11
0 readable 10
0 oob 11
0 read 10
0 < P. 11:101 ack 1
0 > . 1:1 ack 101
0 readable 89
0 read 89
0 mark 1

# RFC 6093, 2 and 4; RFC 9293, 3.8.5: a later mark takes the place of the first
story of two urgent bytes the later one counts
0 begin
0 < P.U 1:11 ack 1 urg 5
0 > . 1:1 ack 11
0 < P.U 11:21 ack 1 urg 5
0 > . 1:1 ack 21
0 readable 14
0 read 14
0 mark 1
0 oob 0

# RFC 9293, 3.10.7.4, sixth check: RCV.UP is the larger of both
story an earlier urgent mark does not take the place of a later one
0 begin
0 < P.U 1:11 ack 1 urg 50
0 > . 1:1 ack 11
0 < P.U 11:21 ack 1 urg 5
0 > . 1:1 ack 21
0 readable 20
0 mark 0

# recv(2), MSG_OOB: the byte is taken once
story the urgent byte is taken once
0 begin
0 oob 22
0 < P.U 1:6 ack 1 urg 5
0 > . 1:1 ack 6
0 oob 0
0 oob 22
0 readable 4

# RFC 9293, 3.8.5: without data
story an urgent mark comes in a segment without data
0 begin
0 < .U 1:1 ack 1 urg 5
0 > nothing
0 oob 11
0 < P. 1:11 ack 1
0 > . 1:1 ack 11
0 readable 4

# RFC 9293, 3.1: without the flag the pointer tells nothing
story an urgent pointer without its flag is ignored
0 begin
0 < P. 1:11 ack 1 urg 5
0 > . 1:1 ack 11
0 oob 22
0 readable 10

# RFC 9293, 3.8.5: a repeated segment still tells of it
story urgent data that is repeated is urgent
0 begin nosack
0 urgent 3
0 > P.U 1:4 ack 1 urg 3
1 > P.U 1:4 ack 1 urg 3
1.100 < . 1:1 ack 4

# RFC 9293, 3.8.5: Nagle does not hold it
story urgent data does not wait for an ACK
0 begin
0 urgent 3
0 > P.U 1:4 ack 1 urg 3
0 urgent 3
0 > P.U 4:7 ack 1 urg 3
0.010 < . 1:1 ack 7

# RFC 9293, 3.1: 16 bits
story an urgent byte that is further than the pointer reaches is told as far as it does
0 begin
0 < . 1:1 ack 1 win 2000
0 write 80000
0 > P. 1:2001 ack 1
0 urgent 1
0.010 < . 1:1 ack 2001 win 2000
0.010 > .U 2001:3001 ack 1 urg 65535
0.010 > .U 3001:4001 ack 1 urg 65535

# RFC 5927, 7.1: the quoted number must be in flight
story a message that quotes the byte before the flight is ignored
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 set mtu 600 0
0.010 mss 1000
0.010 set mtu 600 3001
0.010 mss 1000
0.010 set mtu 600 3000
0.010 mss 600
0.010 > P. 1:3001 ack 1
0.010 segment 600
0.020 < . 1:1 ack 3001

# RFC 1191, 6.4 with RFC 7323, appendix A
story the new length counts the time stamps
0 begin ts
0 write 2964
0 > P. 1:2965 ack 1
0.010 set mtu 600
0.010 > P. 1:2965 ack 1
0.010 segment 588
0.020 < . 1:1 ack 2965 ts 150 110

# RFC 1191, 6.4: only what has not arrived is sent again
story what is SACKed is not sent again after a message
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 < . 1:1 ack 1 sack 2001-3001
0.010 set mtu 600
0.010 > P. 1:2001 ack 1
0.010 segment 600
0.020 < . 1:1 ack 3001

# RFC 2018, 3: the peer's blocks have the borders of the packets that it got
story after a message SACKs of the shorter packets are understood
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 set mtu 600
0.010 > P. 1:3001 ack 1
0.100 < . 1:1 ack 1 sack 601-3001
0.100 sacked 2400
0.100 > . 1:601 ack 1
0.200 < . 1:1 ack 3001

# RFC 1191, 3: a second message lowers it again, and later data obeys
story the path becomes narrower twice
0 begin
0 write 2000
0 > P. 1:2001 ack 1
0.010 set mtu 800
0.010 > P. 1:2001 ack 1
0.020 set mtu 600
0.020 > P. 1:2001 ack 1
0.030 < . 1:1 ack 2001
0.030 write 1200
0.030 > P. 2001:3201 ack 1
0.030 segment 600
0.040 < . 1:1 ack 3201

# RFC 4821, 7.6: a loss that the message explains is no congestion
story a message changes neither window nor threshold
0 begin
0 write 10000
0 > P. 1:10001 ack 1
0.010 set mtu 625
0.010 > P. 1:10001 ack 1
0.010 cwnd 10000
0.010 recovering 0
0.020 < . 1:1 ack 10001

# RFC 9293, 3.8.4 (MUST-25): off by default
story an idle connection is not probed unless it is asked for
0 begin
1000000 > nothing
1000000 state 3

# RFC 9293, 3.8.4; tcp(7): TCP_KEEPINTVL and TCP_KEEPCNT
story the application sets number and pause of the probes
0 begin
0 set keepalive 10
0 set interval 5
0 set keepcnt 2
10 > . 0:0 ack 1
15 > . 0:0 ack 1
19.999 state 3
20 > R. 1:1 ack 1
20 error 110

# RFC 9293, 3.8.4: a peer that has forgotten the connection
story a reset answers a probe
0 begin
0 set keepalive 10
10 > . 0:0 ack 1
10.010 < R 1:1
10.010 state 0
10.010 error 104

# RFC 9293, 3.8.4 (MUST-27): only when nothing has come for the interval
story what arrives puts the probe off
0 begin
0 set keepalive 10
6 < P. 1:101 ack 1
6 > . 1:1 ack 101
15.999 > nothing
16 > . 0:0 ack 101
16.010 < . 101:101 ack 1

# RFC 9293, 3.8.4: data in flight probes by itself
story data in flight is repeated and nothing else is probed
0 begin nosack
0 set keepalive 2
0 write 100
0 > P. 1:101 ack 1
1 > P. 1:101 ack 1
3 > P. 1:101 ack 1
7 > P. 1:101 ack 1
7.100 < . 1:1 ack 101
9.100 > . 100:100 ack 1
9.110 < . 1:1 ack 101

# RFC 9293, 3.8.4 in FIN-WAIT-2
story a half-closed connection is probed
0 begin
0 set keepalive 10
0 shutdown
0 > F. 1:1 ack 1
0.010 < . 1:1 ack 2
10.010 > . 1:1 ack 1
10.020 < . 1:1 ack 2
10.020 state 5

# RFC 5482, 2 with RFC 1122, 4.2.3.5: progress starts it again
story progress starts a user time-out again
0 begin nosack
0 set user_timeout 2.5
0 set nodelay 1
0 write 500
0 > P. 1:501 ack 1
0 write 500
0 > P. 501:1001 ack 1
1 > . 1:501 ack 1
1 > P. 501:1001 ack 1
1.500 < . 1:1 ack 501
3.500 > P. 501:1001 ack 1
3.600 < . 1:1 ack 1001
3.600 state 3

# poll(2), POLLPRI: from the arrival of the urgent byte until it is taken
story the urgent byte is reported until it is taken
0 begin
0 < P.U 1:4 ack 1 urg 4
0 > . 1:1 ack 4
0 pri 0
0 < P.U 4:5 ack 1 urg 1
0 > . 1:1 ack 5
0 pri 1
0 mark 0
0 read 3
0 mark 1
0 pri 1
0 oob 0
0 pri 0
0 mark 1

# poll(2), POLLPRI: reading over it passes it
story the urgent byte is reported until it is passed
0 begin
0 < P.U 1:11 ack 1 urg 5
0 > . 1:1 ack 11
0 pri 1
0 read 4
0 pri 1
0 read 5
0 pri 0
