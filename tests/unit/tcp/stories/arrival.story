# Which segments are taken: RFC 9293, 3.10.7.4, first check, and numbers that wrap (3.4).

# RFC 9293, 3.10.7.4: RCV.NXT =< SEG.SEQ < RCV.NXT+RCV.WND
story the last byte of the window is taken
0 begin small
0 < . 4000:4001 ack 1
0 > . 1:1 ack 1 sack 4000-4001

# RFC 9293, 3.10.7.4
story the first byte behind the window is acknowledged and dropped
0 begin small
0 < . 4001:4002 ack 1
0 > . 1:1 ack 1
0 < . 1:4001 ack 1
0 > . 1:1 ack 4001 win 0
0 readable 4000

# RFC 9293, 3.10.7.4: with a window of zero valid RSTs are taken
story a reset with the exact number ends a connection whose window is closed
0 begin small
0 < . 1:4001 ack 1
0 > . 1:1 ack 4001 win 0
0 < R 4001:4001
0 state 0
0 error 104

# RFC 5961, 3.2: outside the window a reset is dropped silently
story a reset with the next number is ignored while the window is closed
0 begin small
0 < . 1:4001 ack 1
0 > . 1:1 ack 4001 win 0
0 < R 4002:4002
0 > nothing
0 state 3

# RFC 9293, 3.10.7.4: with a window of zero valid URGs are taken
story an urgent mark is taken while the window is closed
0 begin small
0 < . 1:4001 ack 1
0 > . 1:1 ack 4001 win 0
0 oob 22
0 < P.U 4001:4011 ack 1 urg 10
0 > . 1:1 ack 4001 win 0
0 oob 11
0 read 4000
0 > . 1:1 ack 4001 win 4000
0 < P.U 4001:4011 ack 1 urg 10
0 > . 1:1 ack 4011
0 readable 9
0 oob 0

# RFC 9293, 3.10.7.4 with the right edge counted in: the peer has sent all that the window takes, and some of it is lost
story an ACK counts that comes from a peer which has used up our window
0 begin small
0 write 500
0 > P. 1:501 ack 1
0.010 < . 1001:4001 ack 1
0.010 > . 501:501 ack 1 sack 1001-4001
0.020 < . 4001:4001 ack 501
0.020 unacked 0

# RFC 9293, 3.10.7.4: what is outside the window is trimmed, the FIN as well
story a FIN behind the window waits until the bytes before it were taken
0 begin small
0 < F. 1:4501 ack 1
0 > . 1:1 ack 4001 win 0
0 state 3
0 end 0
0 read 4000
0 > . 1:1 ack 4001 win 4000
0 < F. 4001:4501 ack 1
0 state 6
0.040 > . 1:1 ack 4502

# RFC 9293, 3.10.7.4: an old segment with a new tail
story the new part of a segment that overlaps the left edge is taken
0 begin
0 < . 1:501 ack 1
0 > . 1:1 ack 501
0 < . 301:801 ack 1
0 > . 1:1 ack 801 sack 301-501
0 readable 800

# RFC 9293, 3.8.4: a keepalive probe may carry a byte of garbage
story a keepalive probe with a byte is answered and its byte is not taken
0 begin nosack
0 < . 0:1 ack 1
0 > . 1:1 ack 1
0 readable 0

# RFC 9293, 3.4
story data goes through the wrap of the numbers in both directions
0 begin at 4294966796 4294966796
0 < . 4294966796:500 ack 4294966796
0 > . 4294966796:4294966796 ack 500
0 readable 1000
0 write 1000
0 > P. 4294966796:500 ack 500
0.010 < . 500:500 ack 500
0.010 unacked 0
0.010 see 1000y

# RFC 9293, 3.4; RFC 2018, 3
story a range out of order lies across the wrap
0 begin at 1 4294966796
0 < . 4294967196:100 ack 1
0 > . 1:1 ack 4294966796 sack 4294967196-100
0 < . 4294966796:4294967196 ack 1
0 > . 1:1 ack 100
0 readable 600

# RFC 9293, 3.4; RFC 8985, 6.2
story a loss before the wrap is found by SACKs across it
0 begin at 4294965296 1
0 write 10000
0 > P. 4294965296:8000 ack 1
0.100 < . 1:1 ack 4294965296 sack 4294966296-2000
0.100 > . 4294965296:4294966296 ack 1
0.200 < . 1:1 ack 8000
0.200 unacked 0
0.200 repeats 1

# RFC 9293, 3.4; RFC 5961, 3.2
story a reset behind the wrap is in the window and is challenged
0 begin at 1 4294967290
0 < R 5:5
0 > . 1:1 ack 4294967290
0 state 3

# RFC 9293, 3.4; RFC 6093, 2
story an urgent mark lies behind the wrap
0 begin at 1 4294967290
0 < P.U 4294967290:4 ack 1 urg 8
0 > . 1:1 ack 4
0 readable 7
0 read 7
0 mark 1

# RFC 9293, 3.4; 3.8.6.1
story a closed window is probed with the number before a wrap
0 begin closedwindow at 0 1
0 write 100
1 > . 4294967295:4294967295 ack 1
1.010 < . 1:1 ack 0 win 1000
1.010 > P. 0:100 ack 1
1.020 < . 1:1 ack 100

# RFC 9293, 3.10.7.4, fourth and eighth check: SYN comes before FIN
story a SYN with FIN in a connection is challenged and ends nothing
0 begin
0 < SF. 1:1 ack 1
0 > . 1:1 ack 1
0 state 3

# RFC 9293, 3.10.7.4, second check: RST is looked at before the ACK
story a reset with the exact number counts whatever it acknowledges
0 begin
0 < R. 1:1 ack 99999
0 state 0
0 error 104
