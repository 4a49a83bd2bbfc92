# Attacks from outside and from a hostile peer: RFC 5961, RFC 9293, 3.2 and 3.10.7.4.

# RFC 5961, 3.2: the last number of the window
story a reset with the last number of the window is challenged
0 begin
0 < R 65535:65535
0 > . 1:1 ack 1
0 state 3

# RFC 5961, 3.2, item 1
story a reset with the first number behind the window is ignored
0 begin
0 < R 65536:65536
0 > nothing
0 state 3

# RFC 5961, 7
story resets within the window are challenged twice a second
0 begin
0 < R 500:500
0 > . 1:1 ack 1
0.100 < R 600:600
0.200 < R 700:700
0.499 < R 800:800
0.499 > nothing
0.499 challenges 1
0.500 < R 900:900
0.500 > . 1:1 ack 1

# RFC 5961, 4.2: irrespective of the sequence number
story a SYN outside the window is challenged
0 begin
0 < S 900000:900000
0 > . 1:1 ack 1
0 state 3
0 challenges 1

# RFC 5961, 4.2 and 7
story a flood of SYNs outside the window is answered twice a second
0 begin
0 < S 900000:900000
0 > . 1:1 ack 1
0.100 < S 900001:900001
0.200 < S 900002:900002
0.300 < S 900003:900003
0.300 > nothing
0.500 < S 900004:900004
0.500 > . 1:1 ack 1

# RFC 5961, 4: the last ACK of the handshake was lost
story a SYN-ACK that comes again is acknowledged
0 begin
0 < S. 0:0 ack 1
0 > . 1:1 ack 1
0 state 3

# RFC 9293, 3.5.1, figure 9: the peer has rebooted
story a rebooted peer answers the challenge and the connection ends
0 begin
0 < S 5000:5000
0 > . 1:1 ack 1
0.010 < R 1:1
0.010 state 0
0.010 error 104

# RFC 5961, 5.2: SND.UNA - MAX.SND.WND =< SEG.ACK
story data with the oldest ACK that the largest window allows is taken
0 begin at 100001 1 window 4000
0 < P. 1:101 ack 96001
0 > . 100001:100001 ack 101
0 readable 100

# RFC 5961, 5.2
story data with an ACK one older is challenged and dropped
0 begin at 100001 1 window 4000
0 < P. 1:101 ack 96000
0 > . 100001:100001 ack 1
0 readable 0

# RFC 5961, 5.2: MAX.SND.WND is the largest window so far
story a window that grew allows older ACKs
0 begin at 100001 1 window 4000
0 < . 1:1 ack 100001 win 10000
0 < P. 1:101 ack 90001
0 > . 100001:100001 ack 101
0 readable 100

# RFC 9293, 3.10.7.4, fifth check: SEG.ACK > SND.NXT
story an ACK one beyond what was sent is challenged
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.010 < . 1:1 ack 1002
0.010 > . 1001:1001 ack 1
0.010 unacked 1000
0.020 < . 1:1 ack 1001
0.020 unacked 0

# RFC 9293, 3.10.7.4, fifth check: the segment is dropped as a whole
story the window of an ACK of unsent data is not used
0 begin
0 < . 1:1 ack 5000 win 0
0 > . 1:1 ack 1
0 snd_wnd 65535
0 write 1000
0 > P. 1:1001 ack 1
0.010 < . 1:1 ack 1001

# RFC 9293, 3.10.7.4, fifth check: the segment is dropped as a whole, its FIN as well
story the FIN of a segment with an impossible ACK is not taken
0 begin
0 < F. 1:1 ack 5000
0 > . 1:1 ack 1
0 state 3

# RFC 9293, 3.10.7.4, seventh check: bytes before RCV.NXT are not looked at again
story bytes that were acknowledged cannot be changed
0 begin
0 < . 1:101 ack 1 fill a
0 > . 1:1 ack 101
0 < . 51:151 ack 1 fill b
0 > . 1:1 ack 151 sack 51-101
0 see 100a 50b

# the first copy counts, as COMPLIANCE.md says
story bytes that wait out of order cannot be changed
0 begin
0 < . 101:201 ack 1 fill a
0 > . 1:1 ack 1 sack 101-201
0 < . 101:201 ack 1 fill b
0 > . 1:1 ack 1 sack 101-201 sack 101-201
0 < . 1:101 ack 1 fill c
0 > . 1:1 ack 201
0 see 100c 100a

# the first copy counts
story of a segment that covers waiting bytes only the rest is taken
0 begin nosack
0 < . 101:201 ack 1 fill a
0 > . 1:1 ack 1
0 < . 1:301 ack 1 fill b
0 > . 1:1 ack 301
0 see 100b 100a 100b

# the first copy counts
story of a segment that overlaps two waiting ranges the middle is taken
0 begin nosack
0 < . 101:201 ack 1 fill a
0 > . 1:1 ack 1
0 < . 301:401 ack 1 fill c
0 > . 1:1 ack 1
0 < . 151:351 ack 1 fill b
0 > . 1:1 ack 1
0 < . 1:101 ack 1 fill d
0 > . 1:1 ack 401
0 see 100d 100a 100b 100c

# RFC 9293, 3.2 (MUST-68): an option with an impossible length ends the options
story an option of length zero ends the options
0 begin
0 < P. 1:101 ack 1 raw 0300080a
0 > . 1:1 ack 101
0 readable 100

# RFC 9293, 3.2 (MUST-7)
story an option that is longer than the header is not read
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 < P. 1:101 ack 1 raw 0101052a000003e9000007d1
0.010 > . 3001:3001 ack 101
0.010 sacked 0
0.020 < . 101:101 ack 3001

# RFC 9293, 3.2: unknown options are skipped by their length
story an unknown option is skipped and the one behind it counts
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 < . 1:1 ack 1 raw fd04abcd050a000003e9000007d1
0.010 sacked 1000
0.010 < . 1:1 ack 3001

# RFC 9293, 3.2: what is behind the end of the options is padding
story a time stamp behind the end of the options is not read
0 begin ts
0 < P. 1:101 ack 1 raw 00080a0000003200000064
0 > . 1:1 ack 101
0 readable 100

# RFC 7323, 2.2: only in a SYN
story a window scale in a data segment is ignored
0 begin
0 < P. 1:101 ack 1 win 1000 raw 03030e01
0 > . 1:1 ack 101
0 snd_wnd 1000

# RFC 9293, 3.7.1: only in a SYN
story an MSS in a data segment is ignored
0 begin
0 < P. 1:101 ack 1 raw 02040040
0 > . 1:1 ack 101
0 mss 1000

# RFC 2018, 3: the length is 8 for each block and two
story a SACK option of another length is ignored
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 < . 1:1 ack 1 raw 0509000003e900000701
0.010 sacked 0
0.020 < . 1:1 ack 3001

# RFC 2018, 3: an empty block tells nothing
story an empty SACK block is ignored
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 < . 1:1 ack 1 sack 1001-1001
0.010 sacked 0
0.020 < . 1:1 ack 3001

# RFC 2018, 2: only when both SYNs have agreed
story SACKs are ignored when none were agreed on
0 begin nosack
0 write 10000
0 > P. 1:10001 ack 1
0.010 < . 1:1 ack 1 sack 1001-5001
0.010 sacked 0
0.010 > nothing
0.020 < . 1:1 ack 10001

# RFC 2018, 2
story a gap is told without SACK when none was agreed on
0 begin nosack
0 < . 1001:2001 ack 1
0 > . 1:1 ack 1
0 < . 1001:2001 ack 1
0 > . 1:1 ack 1
0 < . 1:1001 ack 1
0 > . 1:1 ack 2001

# RFC 9293, 3.2: forty bytes of padding are no harm
story a header full of padding is taken
0 begin
0 < P. 1:101 ack 1 raw 01010101010101010101010101010101010101010101010101010101010101010101010101010101
0 > . 1:1 ack 101
0 readable 100
