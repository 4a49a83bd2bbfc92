# Time stamps: RFC 7323, 3 to 5. With `ts` ours and the peer's are 100 at the start and count milliseconds.

# RFC 7323, 4.3, (A): the oldest of the segments that a delayed ACK covers
story a delayed ACK echoes the first of its segments
0 begin ts
0 set quick 0
0 < P. 1:101 ack 1 ts 150 100
0 < P. 101:201 ack 1 ts 151 100
0.040 > . 1:1 ack 201 ts 140 150

# RFC 7323, 4.3, (B): behind a gap the last segment in order is echoed
story a segment behind a gap is not echoed
0 begin ts
0 < . 1:101 ack 1 ts 150 100
0 > . 1:1 ack 101 ts 100 150
0 < . 201:301 ack 1 ts 152 100
0 > . 1:1 ack 101 sack 201-301 ts 100 150

# RFC 7323, 4.3, (C): the segment that fills a gap
story the segment that fills a gap is echoed
0 begin ts
0 < . 101:201 ack 1 ts 150 100
0 > . 1:1 ack 1 sack 101-201 ts 100 100
0 < . 1:101 ack 1 ts 151 100
0 > . 1:1 ack 201 ts 100 151

# RFC 7323, 4.3, (2): a segment outside the window changes nothing
story the time stamp of a segment outside the window is not echoed
0 begin ts
0 < P. 90001:90101 ack 1 ts 200 100
0 > . 1:1 ack 1 ts 100 100

# RFC 7323, 5.3: the comparison wraps
story a time stamp that has wrapped is new
0 begin ts stamp 4294967290
0 < P. 1:101 ack 1 ts 4 4294967290
0 > . 1:1 ack 101 ts 4294967290 4

# RFC 7323, 5.3, R1
story behind the wrap a time stamp from before it is old
0 begin ts stamp 4294967290
0 < P. 1:101 ack 1 ts 4 4294967290
0 > . 1:1 ack 101
0 < P. 101:201 ack 1 ts 4294967295 4294967290
0 > . 1:1 ack 101 ts 4294967290 4
0 readable 100

# RFC 7323, 5.4: our clock wraps
story our time stamps wrap
0 begin ts stamp 4294967290
0.010 write 100
0.010 > P. 1:101 ack 1 ts 4 4294967290
0.020 < . 1:1 ack 101 ts 4294967295 4
0.020 srtt 10

# RFC 7323, 4.1: a repeated segment measures by its echo, across the wrap as well
story an echo measures across the wrap of our clock
0 begin ts nosack stamp 4294966796
0 write 500
0 > P. 1:501 ack 1 ts 4294966796 4294966796
1 > P. 1:501 ack 1 ts 500 4294966796
1.100 < . 1:1 ack 501 ts 5 500
1.100 srtt 100
1.100 backoff 0

# RFC 7323, 5.5: after 24 days TS.Recent tells nothing
story after 24 idle days an older time stamp is taken
0 begin ts
2073600 < P. 1:101 ack 1 ts 50 100
2073600 > . 1:1 ack 101 ts 2073600100 50

# RFC 7323, 5.5
story a second before the 24th day it is dropped
0 begin ts
2073599 < P. 1:101 ack 1 ts 50 100
2073599 > . 1:1 ack 1 ts 2073599100 100
2073599 readable 0

# RFC 7323, 5.3, R1: only an older one is dropped
story two segments with the same time stamp are both taken
0 begin ts
0 < P. 1:101 ack 1 ts 150 100
0 > . 1:1 ack 101
0 < P. 101:201 ack 1 ts 150 100
0 > . 1:1 ack 201

# RFC 7323, 5.3, R1: the segment is dropped as a whole
story the ACK of a segment with an old time stamp is not used
0 begin ts
0 write 100
0 > P. 1:101 ack 1
0.010 < . 1:1 ack 101 ts 99 100
0.010 > . 101:101 ack 1
0.010 unacked 100
0.020 < . 1:1 ack 101 ts 120 100
0.020 unacked 0

# RFC 7323, 5.2: RST is not subject to PAWS
story a reset with an old time stamp counts
0 begin ts
0 < R 1:1 ts 50 100
0 state 0
0 error 104

# RFC 7323, 3.2: every segment that is no reset carries the option
story a FIN and a window probe carry time stamps
0 begin ts closedwindow
0 write 100
1 > . 0:0 ack 1 ts 1100 100
1.010 < . 1:1 ack 1 win 1000 ts 160 1100
1.010 > P. 1:101 ack 1 ts 1110 160
1.010 shutdown
1.010 > F. 101:101 ack 1 ts 1110 160
1.020 < . 1:1 ack 102 ts 170 1110

# RFC 7323, 3.2: a reset should carry it
story a reset carries time stamps
0 begin ts
0.050 abort
0.050 > R. 1:1 ack 1 ts 150 100

# RFC 7323, 3.2 and appendix A; RFC 6691, 2: the data is shorter by the option
story time stamps make a full packet twelve bytes shorter
0 begin ts
0 write 2000
0 > P. 1:2001 ack 1
0 segment 988
0.010 < . 1:1 ack 2001 ts 150 100

# RFC 7323, 3.2 has the segment dropped; taken as on Linux, see COMPLIANCE.md
story a segment without the time stamps that were agreed on is taken
0 begin ts
0 < P. 1:101 ack 1
0 > . 1:1 ack 101 ts 100 100
0 readable 100

# RFC 7323, 4.1: an echo of a time that has not come measures nothing
story an echo from the future measures nothing
0 begin ts nosack
0 write 500
0 > P. 1:501 ack 1
1 > P. 1:501 ack 1
1.100 < . 1:1 ack 501 ts 150 90000
1.100 srtt 0

# RFC 7323, 5.3, R1 with RFC 5961, 7
story old time stamps are answered twice a second
0 begin ts
0 < P. 1:101 ack 1 ts 50 100
0 > . 1:1 ack 1
0.100 < P. 1:101 ack 1 ts 51 100
0.200 < P. 1:101 ack 1 ts 52 100
0.200 > nothing
0.500 < P. 1:101 ack 1 ts 53 100
0.500 > . 1:1 ack 1
