story a closed window is probed with growing pauses
0 begin closedwindow
0 write 100
0.999 > nothing
1 > . 0:0 ack 1
1.010 < . 1:1 ack 1 win 0
3 > . 0:0 ack 1
3.010 < . 1:1 ack 1 win 1000
3.010 > P. 1:101 ack 1
3.020 < . 1:1 ack 101

story a window of half a segment waits and is then used
0 begin
0 < . 1:1 ack 1 win 400
0 write 1000
0 > nothing
1 > P. 1:401 ack 1
1.010 < . 1:1 ack 401 win 65535
1.010 > P. 401:1001 ack 1
1.020 < . 1:1 ack 1001

story an old segment does not change the window
0 begin
0 < P. 1:101 ack 1 win 5000
0 > . 1:1 ack 101
0 < . 1:1 ack 1 win 10
0 > . 1:1 ack 101
0 write 3000
0 > P. 1:3001 ack 101
0.010 < . 101:101 ack 3001
