story small writes wait for an acknowledgement
0 begin
0 write 10
0 > P. 1:11 ack 1
0 write 10
0 write 10
0 > nothing
0.010 < . 1:1 ack 11
0.010 > P. 11:31 ack 1
0.020 < . 1:1 ack 31

story with TCP_NODELAY small writes leave at once
0 begin
0 set nodelay 1
0 write 10
0 > P. 1:11 ack 1
0 write 10
0 > P. 11:21 ack 1
0.010 < . 1:1 ack 21

story a tail leaves when only full segments are in flight
0 begin
0 write 1500
0 > P. 1:1501 ack 1
0.010 < . 1:1 ack 1501

story TCP_CORK holds a tail for 200 ms
0 begin
0 set cork 1
0 write 1500
0 > . 1:1001 ack 1
0.010 < . 1:1 ack 1001
0.199 > nothing
0.200 > P. 1001:1501 ack 1
0.210 < . 1:1 ack 1501

story taking the cork out sends at once
0 begin
0 set cork 1
0 write 100
0 > nothing
0.050 set cork 0
0.050 > P. 1:101 ack 1
0.060 < . 1:1 ack 101

story a FIN takes a small tail with it
0 begin
0 write 10
0 > P. 1:11 ack 1
0 write 10
0 shutdown
0 > FP. 11:21 ack 1
0.010 < . 1:1 ack 22
0.010 state 5
