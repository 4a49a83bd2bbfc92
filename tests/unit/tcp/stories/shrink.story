story a window that shrinks to nothing with data in flight is survived while the peer answers
0 begin nosack
0 write 1000
0 > P. 1:1001 ack 1
0.010 < . 1:1 ack 1 win 0
1 > P. 1:1001 ack 1
1 < . 1:1 ack 1 win 0
3 > P. 1:1001 ack 1
3 < . 1:1 ack 1 win 0
7 > P. 1:1001 ack 1
7 < . 1:1 ack 1 win 0
15 > P. 1:1001 ack 1
15 < . 1:1 ack 1 win 0
31 > P. 1:1001 ack 1
31 < . 1:1 ack 1 win 0
63 > P. 1:1001 ack 1
63 < . 1:1 ack 1 win 0
127 > P. 1:1001 ack 1
127 < . 1:1 ack 1 win 0
247 > P. 1:1001 ack 1
247 < . 1:1 ack 1 win 0
367 > P. 1:1001 ack 1
367 < . 1:1 ack 1 win 0
487 > P. 1:1001 ack 1
487 < . 1:1 ack 1 win 0
607 > P. 1:1001 ack 1
607 < . 1:1 ack 1 win 0
727 > P. 1:1001 ack 1
727 < . 1:1 ack 1 win 0
847 > P. 1:1001 ack 1
847 < . 1:1 ack 1 win 0
967 > P. 1:1001 ack 1
967 < . 1:1 ack 1 win 0
1087 > P. 1:1001 ack 1
1087 < . 1:1 ack 1 win 0
1207 > P. 1:1001 ack 1
1207 < . 1:1 ack 1 win 0
1327 > P. 1:1001 ack 1
1327 < . 1:1 ack 1 win 0
1447 > P. 1:1001 ack 1
1447 < . 1:1 ack 1 win 0
1567 > P. 1:1001 ack 1
1567 < . 1:1 ack 1 win 0
1687 > P. 1:1001 ack 1
1687 < . 1:1 ack 1 win 0
1687 state 3
1688 < . 1:1 ack 1001
1688 unacked 0

story the same peer when it is silent is given up after two minutes
0 begin nosack
0 write 1000
0 > P. 1:1001 ack 1
0.010 < . 1:1 ack 1 win 0
1 > P. 1:1001 ack 1
3 > P. 1:1001 ack 1
7 > P. 1:1001 ack 1
15 > P. 1:1001 ack 1
31 > P. 1:1001 ack 1
63 > P. 1:1001 ack 1
126.999 state 3
127 state 0
127 error 110

story a user time-out counts while the window is closed
0 begin closedwindow
0 set user_timeout 5
0 write 100
1 > . 0:0 ack 1
1.010 < . 1:1 ack 1 win 0
3 > . 0:0 ack 1
3.010 < . 1:1 ack 1 win 0
7 error 110

story a closed socket waits two minutes for a closed window
0 begin closedwindow
0 write 100
0 close
1 > . 0:0 ack 1
1 < . 1:1 ack 1 win 0
3 > . 0:0 ack 1
3 < . 1:1 ack 1 win 0
7 > . 0:0 ack 1
7 < . 1:1 ack 1 win 0
15 > . 0:0 ack 1
15 < . 1:1 ack 1 win 0
31 > . 0:0 ack 1
31 < . 1:1 ack 1 win 0
63 > . 0:0 ack 1
63 < . 1:1 ack 1 win 0
126.999 state 4
127 state 0
127 error 110

story an open socket waits for ever
0 begin closedwindow
0 write 100
1 > . 0:0 ack 1
1 < . 1:1 ack 1 win 0
3 > . 0:0 ack 1
3 < . 1:1 ack 1 win 0
7 > . 0:0 ack 1
7 < . 1:1 ack 1 win 0
15 > . 0:0 ack 1
15 < . 1:1 ack 1 win 0
31 > . 0:0 ack 1
31 < . 1:1 ack 1 win 0
63 > . 0:0 ack 1
63 < . 1:1 ack 1 win 0
127 > . 0:0 ack 1
127 < . 1:1 ack 1 win 0
247 > . 0:0 ack 1
247 < . 1:1 ack 1 win 0
367 > . 0:0 ack 1
367 < . 1:1 ack 1 win 0
487 > . 0:0 ack 1
487 < . 1:1 ack 1 win 0
607 > . 0:0 ack 1
607 < . 1:1 ack 1 win 0
727 > . 0:0 ack 1
727 < . 1:1 ack 1 win 0
727 state 3
727 < . 1:1 ack 1
727 > P. 1:101 ack 1
727 < . 1:1 ack 101

story a closed socket repeats its data eight times
0 begin nosack
0 write 100
0 > P. 1:101 ack 1
0 close
0 > F. 101:101 ack 1
1 > P. 1:101 ack 1
1 > F. 101:101 ack 1
3 > P. 1:101 ack 1
3 > F. 101:101 ack 1
7 > P. 1:101 ack 1
7 > F. 101:101 ack 1
15 > P. 1:101 ack 1
15 > F. 101:101 ack 1
31 > P. 1:101 ack 1
31 > F. 101:101 ack 1
63 > P. 1:101 ack 1
63 > F. 101:101 ack 1
127 > P. 1:101 ack 1
127 > F. 101:101 ack 1
247 > P. 1:101 ack 1
247 > F. 101:101 ack 1
367 state 0
367 error 110

story the override timer of a small window does not starve when the peer sends
0 begin
0 < . 1:1 ack 1 win 400
0 write 1000
0.300 < P. 1:11 ack 1 win 400
0.300 > . 1:1 ack 11
0.600 < P. 11:21 ack 1 win 400
0.600 > . 1:1 ack 21
0.900 < P. 21:31 ack 1 win 400
0.900 > . 1:1 ack 31
1 > P. 1:401 ack 31
1.010 < . 31:31 ack 401
1.010 > P. 401:1001 ack 31
1.020 < . 31:31 ack 1001

story a tail probe does not go beyond a window that has shrunk
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.100 write 3000
0.100 > P. 1001:4001 ack 1
0.110 < . 1:1 ack 1001 win 500
0.110 write 3000
0.302 > . 3001:4001 ack 1
0.400 < . 1:1 ack 7001
0.400 > . 4001:4001 ack 1
0.400 < . 1:1 ack 4001
0.400 > P. 4001:7001 ack 1
0.500 < . 1:1 ack 7001
