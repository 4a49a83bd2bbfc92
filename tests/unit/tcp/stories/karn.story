story an ACK of a repeated segment keeps the doubled time-out
0 begin nosack
0 write 1000
0 > P. 1:1001 ack 1
1 > P. 1:1001 ack 1
3 > P. 1:1001 ack 1
3.100 < . 1:1 ack 1001
3.100 write 1000
3.100 > P. 1001:2001 ack 1
7.100 > P. 1001:2001 ack 1
7.200 < . 1:1 ack 2001

story a measurement ends the doubling
0 begin nosack
0 write 1000
0 > P. 1:1001 ack 1
1 > P. 1:1001 ack 1
1.100 < . 1:1 ack 1001
1.100 write 1000
1.100 > P. 1001:2001 ack 1
1.200 < . 1:1 ack 2001
1.200 rto 300
1.200 backoff 0

story with timestamps a repeated segment measures
0 begin ts nosack
0 write 500
0 > P. 1:501 ack 1
1 > P. 1:501 ack 1
1.100 < . 1:1 ack 501 ts 150 1100
1.100 srtt 100
1.100 backoff 0

story a SYN that was lost leaves a time-out of 3 s
0 connect
0 > S 0:0 mss 1000
1 > S 0:0 mss 1000
1.100 < S. 0:0 ack 1 mss 1000
1.100 > . 1:1 ack 1
1.100 rto 3000
1.100 cwnd 10000

story two lost SYNs leave a window of one segment
0 connect
0 > S 0:0 mss 1000
1 > S 0:0 mss 1000
3 > S 0:0 mss 1000
3.100 < S. 0:0 ack 1 mss 1000
3.100 > . 1:1 ack 1
3.100 cwnd 1000

story a SYN-ACK that was asked for again measures nothing
0 accept
0 > S. 0:0 ack 1 mss 1000
0.900 < S 0:0 mss 1000
0.900 > S. 0:0 ack 1 mss 1000
0.910 < . 1:1 ack 1
0.910 srtt 0

story the variation counts with 200 ms at least
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.010 < . 1:1 ack 1001
0.010 rto 210
0.010 srtt 10

story the time-out is two minutes at most
0 begin nosack
0 write 500
0 > P. 1:501 ack 1
1 > P. 1:501 ack 1
3 > P. 1:501 ack 1
7 > P. 1:501 ack 1
15 > P. 1:501 ack 1
31 > P. 1:501 ack 1
63 > P. 1:501 ack 1
127 > P. 1:501 ack 1
247 > P. 1:501 ack 1
247 rto 120000
367 > P. 1:501 ack 1
368 < . 1:1 ack 501
