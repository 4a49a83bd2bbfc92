story the first segments are acknowledged at once
0 begin
0 < P. 1:101 ack 1
0 > . 1:1 ack 101
0 readable 100

story an acknowledgement waits 40 ms when the application answers
0 begin
0 set quick 0
0.010 < P. 1:101 ack 1
0.049 > nothing
0.050 > . 1:1 ack 101

story every second full segment is acknowledged at once
0 begin
0 set quick 0
0 < . 1:1001 ack 1
0 > nothing
0 < . 1001:2001 ack 1
0 > . 1:1 ack 2001

story an acknowledgement rides on data
0 begin
0 set quick 0
0 < P. 1:101 ack 1
0.010 write 10
0.010 > P. 1:11 ack 101
0.050 < . 101:101 ack 11
0.100 > nothing

story ten full segments leave in one descriptor
0 begin
0 write 20000
0 > P. 1:10001 ack 1
0.010 < . 1:1 ack 10001
0.010 > P. 10001:20001 ack 1
0.020 < . 1:1 ack 20001
0.020 unacked 0

story the peer's window limits what leaves
0 begin
0 < . 1:1 ack 1 win 3000
0 write 5000
0 > P. 1:3001 ack 1
0.010 < . 1:1 ack 3001 win 2000
0.010 > P. 3001:5001 ack 1
0.020 < . 1:1 ack 5001

story a full receive buffer closes the window and reading opens it
0 begin small
0 < . 1:1001 ack 1
0 > . 1:1 ack 1001 win 3000
0 < . 1001:4001 ack 1
0 > . 1:1 ack 4001 win 0
0 read 4000
0 > . 1:1 ack 4001 win 4000

story a reader that takes single bytes opens no silly window
0 begin small
0 < . 1:4001 ack 1
0 > . 1:1 ack 4001 win 0
0 read 1
0 read 500
0 > nothing
0 read 1500
0 > . 1:1 ack 4001 win 2001

story bytes beyond the window are cut
0 begin small
0 < . 1:6001 ack 1
0 > . 1:1 ack 4001 win 0
0 readable 4000

story the second full packet of a narrow path is acknowledged at once
0 begin
0 set quick 0
0 < . 1:601 ack 1
0 > nothing
0 < . 601:1201 ack 1
0 > . 1:1 ack 1201

story after a pause in which nobody answered acknowledgements are quick again
0 begin
0 set quick 0
0 < P. 1:101 ack 1
0.040 > . 1:1 ack 101
5 < P. 101:201 ack 1
5 > . 1:1 ack 201

# VMA_TCP_QUICKACK; without it, RFC 9293, 3.8.6.3
story with quickack each segment is acknowledged at once, also while the application answers
0 begin
0 set quick 0
0 set quickack 1
0 < . 1:11 ack 1
0 > . 1:1 ack 11
0 < . 11:21 ack 1
0 > . 1:1 ack 21
0 set quickack 0
0 < . 21:31 ack 1
0 > nothing
