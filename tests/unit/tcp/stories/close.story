story we close first
0 begin
0 close
0 > F. 1:1 ack 1
0 state 4
0.010 < . 1:1 ack 2
0.010 state 5
0.020 < F. 1:1 ack 2
0.020 > . 2:2 ack 2
0.020 state 9
60.030 state 0

story the peer closes first
0 begin
0 < F. 1:1 ack 1
0 > . 1:1 ack 2
0 state 6
0 end 1
0.010 close
0.010 > F. 1:1 ack 2
0.010 state 8
0.020 < . 2:2 ack 2
0.020 state 0
0.020 error 0

story both close at once
0 begin
0 close
0 > F. 1:1 ack 1
0 < F. 1:1 ack 1
0 > . 2:2 ack 2
0 state 7
0.010 < . 2:2 ack 2
0.010 state 9

story after a half close data still arrives
0 begin
0 shutdown
0 > F. 1:1 ack 1
0.010 < . 1:1 ack 2
0.010 < P. 1:101 ack 2
0.010 > . 2:2 ack 101
0.010 readable 100

story close with unread bytes resets
0 begin
0 < P. 1:101 ack 1
0 > . 1:1 ack 101
0 close
0 > R. 1:1 ack 101
0 state 0

story data after close is answered by a reset
0 begin
0 close
0 > F. 1:1 ack 1
0.010 < . 1:1 ack 2
0.010 < P. 1:101 ack 2
0.010 > R 2:2
0.010 state 0

story a FIN in TIME-WAIT is acknowledged again
0 begin
0 close
0 > F. 1:1 ack 1
0 < F. 1:1 ack 2
0 > . 2:2 ack 2
0 < F. 1:1 ack 2
0 > . 2:2 ack 2
0 state 9

story an orphan in FIN-WAIT-2 ends after a minute
0 begin
0 close
0 > F. 1:1 ack 1
0 < . 1:1 ack 2
0 state 5
60 state 0

story abort sends a reset
0 begin
0 abort
0 > R. 1:1 ack 1
0 state 0
