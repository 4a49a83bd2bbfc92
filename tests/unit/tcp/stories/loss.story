story three SACKed segments after a gap repeat the first one
0 begin
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1 sack 1001-2001
0.100 < . 1:1 ack 1 sack 1001-3001
0.100 > nothing
0.100 < . 1:1 ack 1 sack 1001-4001
0.100 > . 1:1001 ack 1
0.200 < . 1:1 ack 10001
0.200 unacked 0
0.200 repeats 1

story without SACK three duplicate ACKs repeat the first segment
0 begin nosack
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1
0.100 < . 1:1 ack 1
0.100 > nothing
0.100 < . 1:1 ack 1
0.100 > . 1:1001 ack 1
0.200 < . 1:1 ack 10001
0.200 repeats 1

story without SACK a partial ACK repeats the next hole
0 begin nosack
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1
0.100 < . 1:1 ack 1
0.100 < . 1:1 ack 1
0.100 > . 1:1001 ack 1
0.200 < . 1:1 ack 5001
0.200 > . 5001:6001 ack 1
0.300 < . 1:1 ack 10001

story limited transmit sends new data on the first two duplicate ACKs
0 begin nosack
0 write 20000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1
0.100 > . 10001:11001 ack 1
0.100 < . 1:1 ack 1
0.100 > . 11001:12001 ack 1
0.200 < . 1:1 ack 12001
0.200 > P. 12001:20001 ack 1
0.300 < . 1:1 ack 20001

story a time-out repeats one segment and doubles
0 begin nosack
0 write 1000
0 > P. 1:1001 ack 1
1 > P. 1:1001 ack 1
3 > P. 1:1001 ack 1
7 > P. 1:1001 ack 1
7.1 < . 1:1 ack 1001
7.1 unacked 0

story a lost tail is probed before the time-out
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.100 write 3000
0.100 > P. 1001:4001 ack 1
0.302 > P. 3001:4001 ack 1
0.400 < . 1:1 ack 4001
0.400 unacked 0

story a user time-out ends the connection
0 begin nosack
0 set user_timeout 5
0 write 10
0 > P. 1:11 ack 1
1 > P. 1:11 ack 1
3 > P. 1:11 ack 1
7 error 110
7 state 0

# tcp(7), TCP_USER_TIMEOUT; Linux: the last repeat is not waited for
story a user time-out ends a handshake between two repeats
0 connect
0 > S 0:0 mss 1000
0 set user_timeout 2
1 > S 0:0 mss 1000
1.999 state 1
2 error 110
