story after a pause of many time-outs the window is the initial one
0 begin
0 write 30000
0 > P. 1:10001 ack 1
0.010 < . 1:1 ack 10001
0.010 > P. 10001:30001 ack 1
0.020 < . 1:1 ack 30001
0.020 cwnd 40000
1 write 30000
1 cwnd 10000
1 > P. 30001:40001 ack 1
1.010 < . 1:1 ack 40001
1.010 > P. 40001:60001 ack 1
1.020 < . 1:1 ack 60001

# RFC 2861, 3.2; RFC 6298: the time-out is 210 ms
story each time-out of a pause halves the window
0 begin
0 write 51000
0 > P. 1:10001 ack 1
0.010 < . 1:1 ack 10001
0.010 > P. 10001:30001 ack 1
0.020 < . 1:1 ack 30001
0.020 > P. 30001:51001 ack 1
0.030 < . 1:1 ack 51001
0.030 cwnd 61000
0.300 write 20000
0.300 cwnd 30500
0.300 > P. 51001:71001 ack 1
0.300 ssthresh 4294967295
0.310 < . 1:1 ack 71001

story after a short pause it is kept
0 begin
0 write 20000
0 > P. 1:10001 ack 1
0.010 < . 1:1 ack 10001
0.010 > P. 10001:20001 ack 1
0.020 < . 1:1 ack 20001
0.020 cwnd 20000
0.200 write 20000
0.200 > P. 20001:40001 ack 1
0.210 < . 1:1 ack 40001

story a window that is not used does not grow
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 < . 1:1 ack 3001
0.010 write 3000
0.010 > P. 3001:6001 ack 1
0.020 < . 1:1 ack 6001
0.020 cwnd 10000

story slow start doubles the window in a round trip
0 begin
0 write 70000
0 > P. 1:10001 ack 1
0.010 < . 1:1 ack 5001
0.010 > P. 10001:20001 ack 1
0.010 < . 1:1 ack 10001
0.010 > P. 20001:30001 ack 1
0.010 cwnd 20000
0.020 < . 1:1 ack 30001
0.020 cwnd 40000
0.020 > P. 30001:70001 ack 1
0.030 < . 1:1 ack 70001

story a probe of an idle peer with a user time-out
0 begin
0 set user_timeout 30
0 set keepalive 10
10 > . 0:0 ack 1
85 > R. 1:1 ack 1
85 error 110

# RFC 7661, 4.2; Linux: in slow start a window of which half is used grows
story nine packets of ten are enough for the window to grow
0 begin
0 write 9000
0 > P. 1:9001 ack 1
0.100 < . 1:1 ack 9001
0.100 cwnd 19000

story four packets of ten are not
0 begin
0 write 4000
0 > P. 1:4001 ack 1
0.100 < . 1:1 ack 4001
0.100 cwnd 10000
