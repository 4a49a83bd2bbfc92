story a reader that keeps up gets a larger window
0 begin scale autotune
0.010 < . 1:60001 ack 1
0.010 > . 1:1 ack 60001 win 43
0.060 read 60000
0.060 > . 1:1 ack 60001 win 1004

story a reader that does not read gets no larger window
0 begin scale autotune
0.010 < . 1:60001 ack 1
0.010 > . 1:1 ack 60001 win 43
1 < . 60001:65505 ack 1
1 > . 1:1 ack 65505 win 0
1 readable 65504

story a buffer that was set by hand is not tuned
0 begin scale
0.010 < . 1:60001 ack 1
0.010 > . 1:1 ack 60001 win 43
0.060 read 60000
0.060 > . 1:1 ack 60001 win 511

story a window never shrinks when the buffer does
0 begin
0 set receive 4000
0 < . 1:1001 ack 1
0 > . 1:1 ack 1001 win 64535
0 < . 1001:3001 ack 1
0 > . 1:1 ack 3001 win 62535

story a window that opened by little is not told
0 begin small
0 < . 1:1001 ack 1
0 > . 1:1 ack 1001 win 3000
0 read 1000
0 > nothing

story a pure ACK that data has overtaken still counts
0 begin
0 set quick 0
0 write 1000
0 > P. 1:1001 ack 1
0.010 < . 1:101 ack 1
0.011 < . 1:1 ack 1001
0.011 unacked 0
0.050 > . 1001:1001 ack 101

story a keepalive probe does not touch what was read
0 begin
0 < P. 1:101 ack 1
0 > . 1:1 ack 101
0 read 100
0 < . 100:100 ack 1
0 > . 1:1 ack 101
0 readable 0

story a window probe with a byte is answered while the window is closed
0 begin small
0 < . 1:4001 ack 1
0 > . 1:1 ack 4001 win 0
1 < . 4001:4002 ack 1
1 > . 1:1 ack 4001 win 0
1 readable 4000

story an ACK is used while our window is closed
0 begin small
0 write 500
0 > P. 1:501 ack 1
0 < . 1:4001 ack 1
0 > . 501:501 ack 4001 win 0
0 < . 4001:4001 ack 501
0 unacked 0

story many ranges: the latest ones are reported first
0 begin
0 < . 101:201 ack 1
0 > . 1:1 ack 1 sack 101-201
0 < . 301:401 ack 1
0 > . 1:1 ack 1 sack 301-401 sack 101-201
0 < . 501:601 ack 1
0 > . 1:1 ack 1 sack 501-601 sack 301-401 sack 101-201
0 < . 701:801 ack 1
0 > . 1:1 ack 1 sack 701-801 sack 501-601 sack 301-401 sack 101-201
0 < . 901:1001 ack 1
0 > . 1:1 ack 1 sack 901-1001 sack 701-801 sack 501-601 sack 301-401
0 < . 151:251 ack 1
0 > . 1:1 ack 1 sack 151-201 sack 101-251 sack 901-1001 sack 701-801

story with timestamps three ranges fit
0 begin ts
0 < . 101:201 ack 1 ts 150 100
0 > . 1:1 ack 1 sack 101-201
0 < . 301:401 ack 1 ts 150 100
0 > . 1:1 ack 1 sack 301-401 sack 101-201
0 < . 501:601 ack 1 ts 150 100
0 > . 1:1 ack 1 sack 501-601 sack 301-401 sack 101-201
0 < . 701:801 ack 1 ts 150 100
0 > . 1:1 ack 1 sack 701-801 sack 501-601 sack 301-401

story data carries the ranges and is shorter by them
0 begin
0 < . 101:201 ack 1
0 > . 1:1 ack 1 sack 101-201
0 write 2000
0 > P. 1:2001 ack 1 sack 101-201
0 segment 988
0.010 < . 201:201 ack 2001
