# Windows of the peer and ours: RFC 9293, 3.8.6, RFC 7323, 2, RFC 1122, 4.2.3.

# RFC 9293, 3.8.6.1 (SHLD-29): the first probe after a time-out
story a window that closes is probed after a time-out
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001 win 0
0.100 write 1000
0.399 > nothing
0.400 > . 1000:1000 ack 1
0.410 < . 1:1 ack 1001 win 65535
0.410 > P. 1001:2001 ack 1
0.500 < . 1:1 ack 2001

# RFC 9293, 3.8.6.1: the update that opens the window may be lost, the probe finds it out
story a window update that was lost is found by the probe
0 begin closedwindow
0 write 1000
1 > . 0:0 ack 1
1.010 < . 1:1 ack 1 win 5000
1.010 > P. 1:1001 ack 1
1.020 < . 1:1 ack 1001

# RFC 9293, 3.8.6.1: nothing to send, nothing to probe
story a closed window is not probed without data
0 begin closedwindow
1000 > nothing
1000 state 3

# RFC 7323, 2.3: the peer's window is shifted to the left
story a scaled window limits what leaves
0 begin scale
0 < . 1:1 ack 1 win 40
0 snd_wnd 5120
0 write 10000
0 > P. 1:5001 ack 1
0.010 < . 1:1 ack 5001 win 400
0.010 > P. 5001:10001 ack 1
0.020 < . 1:1 ack 10001 win 400

# RFC 9293, 3.8.6.2.1, (3): half of the largest window that the peer has offered
story half of a small window is worth a segment
0 begin window 800
0 write 1000
0 > . 1:801 ack 1
0.010 < . 1:1 ack 801 win 800
0.010 > P. 801:1001 ack 1
0.020 < . 1:1 ack 1001 win 800

# RFC 9293, 3.8.6.2.1: less than that waits for the override time-out
story less than half of a small window waits
0 begin window 800
0 write 2000
0 > . 1:801 ack 1
0.010 < . 1:1 ack 801 win 300
0.010 > nothing
0.219 > nothing
0.220 > P. 801:1101 ack 1
0.230 < . 1:1 ack 1101 win 800
0.230 > . 1101:1901 ack 1
0.240 < . 1:1 ack 1901 win 800
0.240 > P. 1901:2001 ack 1
0.250 < . 1:1 ack 2001 win 800

# RFC 9293, 3.8.6.2.1, (2): all that there is fits
story the end of the data fits into a small window
0 begin
0 < . 1:1 ack 1 win 300
0 write 300
0 > P. 1:301 ack 1
0.010 < . 1:1 ack 301

# RFC 9293, 3.10.7.4: SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK
story a window update without new data or ACK is used
0 begin
0 < . 1:1 ack 1 win 2000
0 snd_wnd 2000
0 < . 1:1 ack 1 win 8000
0 snd_wnd 8000

# RFC 9293, 3.10.7.4: a newer segment counts even when it makes the window smaller
story a window that shrinks is believed
0 begin
0 write 2000
0 > P. 1:2001 ack 1
0.010 < . 1:1 ack 1 win 1500
0.010 write 5000
0.010 > nothing
0.020 < . 1:1 ack 2001 win 1000
0.020 > . 2001:3001 ack 1
0.030 < . 1:1 ack 3001 win 65535
0.030 > P. 3001:7001 ack 1
0.040 < . 1:1 ack 7001

# RFC 9293, 3.8.6 (SHLD-16, SHLD-17): behind the edge of a window that has shrunk data may be repeated, new data may not leave
story data behind the edge of a window that has shrunk is still repeated
0 begin nosack
0 write 3000
0 > P. 1:3001 ack 1
0.010 < . 1:1 ack 1001 win 500
0.010 write 1000
0.220 > . 1001:2001 ack 1
0.230 < . 1:1 ack 3001 win 65535
0.230 > P. 3001:4001 ack 1
0.240 < . 1:1 ack 4001

# RFC 9293, 3.8.6.1: a receiver with a closed window answers every probe
story probes of our closed window are answered
0 begin small
0 < . 1:4001 ack 1
0 > . 1:1 ack 4001 win 0
1 < . 4000:4000 ack 1
1 > . 1:1 ack 4001 win 0
3 < . 4000:4000 ack 1
3 > . 1:1 ack 4001 win 0
7 < . 4001:4002 ack 1
7 > . 1:1 ack 4001 win 0
7 readable 4000

# RFC 9293, 3.8.6.2.2: at least a segment; an update of its own leaves, as on Linux, for two, or half of the buffer
story a closed window opens when half of the buffer is free
0 begin small
0 < . 1:1001 ack 1
0 > . 1:1 ack 1001 win 3000
0 < . 1001:2001 ack 1
0 > . 1:1 ack 2001 win 2000
0 < . 2001:3001 ack 1
0 > . 1:1 ack 3001 win 1000
0 < . 3001:4001 ack 1
0 > . 1:1 ack 4001 win 0
0 read 1999
0 > nothing
0 read 1
0 > . 1:1 ack 4001 win 2000

# RFC 9293, 3.8.6.2.2: what waits out of order is not taken from the window
story bytes out of order do not move the window's edge
0 begin small
0 < . 1001:2001 ack 1
0 > . 1:1 ack 1 sack 1001-2001 win 4000
0 < . 1:1001 ack 1
0 > . 1:1 ack 2001 win 2000

# RFC 1122, 4.2.3.2: an acknowledgement is delayed by less than half a second, and not at all for the second full segment
# More than a full segment is acknowledged, as on Linux: the sender may hold back more until then (Nagle).
story a small segment behind a full one is acknowledged at once
0 begin
0 set quick 0
0 < . 1:501 ack 1
0.020 > nothing
0.020 < P. 501:551 ack 1
0.020 > . 1:1 ack 551

# RFC 5681, 4.2: a segment that fills a part of a gap is acknowledged at once
story a segment that fills a part of a gap is acknowledged at once
0 begin
0 set quick 0
0 < . 1001:1501 ack 1
0 > . 1:1 ack 1 sack 1001-1501
0 < . 1:501 ack 1
0 > . 1:1 ack 501 sack 1001-1501
0 < . 501:1001 ack 1
0 > . 1:1 ack 1501

# RFC 5681, 4.2: of several that were merged there are more than two
story merged segments are acknowledged at once
0 begin
0 set quick 0
0 < . 1:201 ack 1 merged 2
0 > . 1:1 ack 201

# RFC 9293, 3.7.4 (Nagle): the small segment waits for the ACK of all small ones
story Nagle holds a small segment behind a full one and a small one
0 begin
0 write 1500
0 > P. 1:1501 ack 1
0 write 100
0 > nothing
0.010 < . 1:1 ack 1001
0.010 > nothing
0.020 < . 1:1 ack 1501
0.020 > P. 1501:1601 ack 1
0.030 < . 1:1 ack 1601

# RFC 9293, 3.7.4: a full segment does not wait
story Nagle lets full segments leave
0 begin
0 write 100
0 > P. 1:101 ack 1
0 write 1500
0 > . 101:1101 ack 1
0.010 < . 1:1 ack 1101
0.010 > P. 1101:1601 ack 1
0.020 < . 1:1 ack 1601

# RFC 9293, 3.7.1: TCP_MAXSEG
story a lower limit of the application makes packets shorter
0 begin
0 set maxseg 500
0 write 2000
0 > P. 1:2001 ack 1
0 segment 500
0.010 < . 1:1 ack 2001

# RFC 9293, 3.10.7.4: the peer uses no ACK of a segment outside its window; RFC 1122, 4.2.3.2
story a window probe does not take the place of an acknowledgement
0 begin closedwindow
0 set quick 0
0 write 100
0.980 < P. 1:101 ack 1 win 0
1 > . 0:0 ack 101
1 > . 1:1 ack 101
1.010 < . 101:101 ack 1 win 1000
1.010 > P. 1:101 ack 101
1.020 < . 101:101 ack 101

# RFC 9293, 3.10.7.4 with 3.8.6.2.2
story a window probe does not take the place of a window update
0 begin closedwindow small
0 write 100
0 < . 1:4001 ack 1 win 0
0 > . 1:1 ack 4001 win 0
0.500 read 1000
0.500 > nothing
1 > . 0:0 ack 4001 win 1000
1 > . 1:1 ack 4001 win 1000
1.010 < . 4001:4001 ack 1 win 1000
1.010 > P. 1:101 ack 4001
1.020 < . 4001:4001 ack 101
