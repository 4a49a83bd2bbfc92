story a gap is told by SACK at once
0 begin
0 set quick 0
0 < . 1001:2001 ack 1
0 > . 1:1 ack 1 sack 1001-2001
0 < . 3001:4001 ack 1
0 > . 1:1 ack 1 sack 3001-4001 sack 1001-2001
0 readable 0
0 < . 1:1001 ack 1
0 > . 1:1 ack 2001 sack 3001-4001
0 < . 2001:3001 ack 1
0 > . 1:1 ack 4001
0 readable 4000

story a segment that came twice is told by DSACK
0 begin
0 < . 1:1001 ack 1
0 > . 1:1 ack 1001
0 < . 1:1001 ack 1
0 > . 1:1 ack 1001 sack 1-1001
0 readable 1000

story a range that came twice is told by DSACK
0 begin
0 < . 1001:2001 ack 1
0 > . 1:1 ack 1 sack 1001-2001
0 < . 1001:2001 ack 1
0 > . 1:1 ack 1 sack 1001-2001 sack 1001-2001

story a FIN that comes early waits for the gap
0 begin
0 < F. 101:201 ack 1
0 > . 1:1 ack 1 sack 101-202
0 state 3
0 < . 1:101 ack 1
0 > . 1:1 ack 202
0 state 6
