story a scaled window is not rounded up beyond the buffer
0 begin small scale
0 < . 1:3901 ack 1
0 > . 1:1 ack 3901 win 0
0 < . 3901:4001 ack 1
0 > . 1:1 ack 4001 win 0
0 readable 4000
0 < . 4001:4101 ack 1
0 > . 1:1 ack 4001 win 0
0 readable 4000

story a window rounded down is still taken as it was told
0 begin small scale
0 < . 1:3501 ack 1
0 > . 1:1 ack 3501 win 3
0 < . 3501:4001 ack 1
0 > . 1:1 ack 4001 win 0
0 readable 4000

story an ACK before what is acknowledged does not change the window
0 begin nosack
0 write 3000
0 > P. 1:3001 ack 1
0.010 < . 1:1 ack 3001 win 1000
0.010 < . 2:102 ack 1001 win 3000
0.010 > . 3001:3001 ack 1
0.010 write 3000
0.010 > . 3001:4001 ack 1
0.020 < . 1:1 ack 4001
0.020 > P. 4001:6001 ack 1
0.030 < . 1:1 ack 6001

story a repeated SYN does not keep a half-open connection alive
0 accept
0 > S. 0:0 ack 1 mss 1000
0.900 < S 0:0 mss 1000
0.900 > S. 0:0 ack 1 mss 1000
1 > S. 0:0 ack 1 mss 1000
1.600 < S 0:0 mss 1000
1.600 > S. 0:0 ack 1 mss 1000
3 > S. 0:0 ack 1 mss 1000
7 > S. 0:0 ack 1 mss 1000
15 > S. 0:0 ack 1 mss 1000
31 > S. 0:0 ack 1 mss 1000
63 > S. 0:0 ack 1 mss 1000
127 state 0

story a flood of SYNs is answered twice a second
0 accept
0 > S. 0:0 ack 1 mss 1000
0.100 < S 0:0 mss 1000
0.200 < S 0:0 mss 1000
0.300 < S 0:0 mss 1000
0.300 > nothing
0.600 < S 0:0 mss 1000
0.600 > S. 0:0 ack 1 mss 1000
0.700 < S 0:0 mss 1000
0.700 > nothing

story a FIN within bytes that have arrived is not believed
0 begin
0 < . 301:801 ack 1
0 > . 1:1 ack 1 sack 301-801
0 < F. 501:501 ack 1
0 > . 1:1 ack 1 sack 301-801
0 < . 1:301 ack 1
0 > . 1:1 ack 801
0 readable 800
0 < F. 801:801 ack 1
0 state 6
0.040 > . 1:1 ack 802

story a DSACK of unsent bytes undoes nothing
0 begin
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1 sack 1001-4001
0.100 > . 1:1001 ack 1
0.100 < . 1:1 ack 1 sack 90001-91001
0.100 dsacks 0
0.100 undone 0
0.200 < . 1:1 ack 10001

story a DSACK of bytes from before the recovery undoes nothing
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.100 write 10000
0.100 > P. 1001:11001 ack 1
0.200 < . 1:1 ack 1001 sack 2001-5001
0.200 > . 1001:2001 ack 1
0.200 < . 1:1 ack 1001 sack 1-1001
0.200 dsacks 1
0.200 undone 0
0.300 < . 1:1 ack 11001

story a segment that ends before the window is acknowledged and dropped
0 begin
0 < . 1:501 ack 1
0 > . 1:1 ack 501
0 < . 1:501 ack 1
0 > . 1:1 ack 501 sack 1-501
0 readable 500

story a segment wholly beyond the window is acknowledged and dropped
0 begin
0 < . 90001:91001 ack 1
0 > . 1:1 ack 1
0 readable 0

story a segment without ACK is dropped
0 begin
0 < P 1:101
0 > nothing
0 readable 0

story a SYN with data in the window changes nothing
0 begin
0 < SP. 1:101 ack 1
0 > . 1:1 ack 1
0 readable 0

story overlapping bytes with other contents: what came first counts, each byte once
0 begin
0 < . 101:201 ack 1
0 > . 1:1 ack 1 sack 101-201
0 < . 51:251 ack 1
0 > . 1:1 ack 1 sack 101-201 sack 51-251
0 < . 1:301 ack 1
0 > . 1:1 ack 301 sack 51-251
0 readable 300

story numbers wrap: SACK blocks that end before they begin are ignored
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 < . 1:1 ack 1 sack 2001-1001
0.010 in_flight 3000
0.020 < . 1:1 ack 3001

story a SACK block of half the number space is ignored
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 < . 1:1 ack 1 sack 1001-2147485000
0.010 in_flight 3000
0.020 < . 1:1 ack 3001

story a reset with the number behind our window is ignored
0 begin
0 < R. 4294967295:4294967295 ack 1
0 > nothing
0 state 3

story acknowledgements of single bytes grow the window by single bytes
0 begin
0 write 10000
0 > P. 1:10001 ack 1
0.010 < . 1:1 ack 2
0.010 < . 1:1 ack 3
0.010 < . 1:1 ack 4
0.010 cwnd 10003
0.020 < . 1:1 ack 10001
