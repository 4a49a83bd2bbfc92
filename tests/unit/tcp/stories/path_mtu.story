story packets that are too big for the path leave again, smaller, and the window stays
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 set mtu 600
0.010 > P. 1:3001 ack 1
0.010 mss 600
0.010 cwnd 10000
0.020 < . 1:1 ack 3001

story packets that fit do not leave again
0 begin
0 set nodelay 1
0 write 3000
0 > P. 1:3001 ack 1
0 write 300
0 > P. 3001:3301 ack 1
0.010 set mtu 600
0.010 > P. 1:3001 ack 1
0.020 < . 1:1 ack 3301

story a message that quotes a number not in flight is ignored
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 < . 1:1 ack 3001
0.020 set mtu 600
0.020 mss 1000

story a message with a larger MTU is ignored
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 set mtu 1400
0.010 mss 1000
0.020 < . 1:1 ack 3001

story packets that are too big for another way leave again, smaller; a wider way makes them longer
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 set way 600
0.010 > P. 1:3001 ack 1
0.010 mss 600
0.010 cwnd 10000
0.020 < . 1:1 ack 3001
0.030 set way 900
0.030 mss 900
0.040 set way 100
0.040 mss 100

story a path is not taken for narrower than 512 bytes
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.010 set mtu 100
0.010 > P. 1:1001 ack 1
0.010 mss 512
0.020 < . 1:1 ack 1001

story a black hole: after six time-outs packets are small, after ten minutes large ones are tried again
0 begin nosack
0 write 1000
0 > P. 1:1001 ack 1
1 > P. 1:1001 ack 1
3 > P. 1:1001 ack 1
7 > P. 1:1001 ack 1
15 > P. 1:1001 ack 1
31 > P. 1:1001 ack 1
63 > . 1:513 ack 1
63 mss 512
63.100 < . 1:1 ack 513
63.100 > P. 513:1001 ack 1
63.200 < . 1:1 ack 1001
600 write 1000
600 > P. 1001:2001 ack 1
600 mss 512
600.100 < . 1:1 ack 2001
700 write 1000
700 > P. 2001:3001 ack 1
700 mss 1000
700.100 < . 1:1 ack 3001

story short packets that are lost are no black hole
0 begin nosack
0 write 500
0 > P. 1:501 ack 1
1 > P. 1:501 ack 1
3 > P. 1:501 ack 1
7 > P. 1:501 ack 1
15 > P. 1:501 ack 1
31 > P. 1:501 ack 1
63 > P. 1:501 ack 1
63 mss 1000
63.100 < . 1:1 ack 501
