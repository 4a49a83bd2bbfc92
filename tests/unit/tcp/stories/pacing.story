story a rate spreads data in bursts of two packets
0 begin
0 set pace 100000
0 write 10000
0 > P. 1:2001 ack 1
0.020 > P. 2001:4001 ack 1
0.040 > P. 4001:6001 ack 1
0.060 > P. 6001:8001 ack 1
0.080 > P. 8001:10001 ack 1
0.080 < . 1:1 ack 10001

story acknowledgements do not wait for the rate
0 begin
0 set pace 100000
0 write 4000
0 > P. 1:2001 ack 1
0.005 < P. 1:101 ack 1
0.005 > . 2001:2001 ack 101
0.020 > P. 2001:4001 ack 101
0.100 < . 101:101 ack 4001

story a rate above what the window gives is not reached
0 begin
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 10001
0.100 set pace 100000000
0.100 write 10000
0.100 > P. 10001:12001 ack 1
0.105 > P. 12001:14001 ack 1
0.110 > P. 14001:16001 ack 1
0.115 > P. 16001:18001 ack 1
0.120 > P. 18001:20001 ack 1
0.200 < . 1:1 ack 20001

story a rate that is taken back lets the rest leave
0 begin
0 set pace 1000
0 write 4000
0 > P. 1:2001 ack 1
0.100 set pace 0
0.100 > P. 2001:4001 ack 1
0.200 < . 1:1 ack 4001
