story a FIN that overtakes data waits for it
0 begin
0 < F. 101:101 ack 1
0 > . 1:1 ack 1 sack 101-102
0 state 3
0 < . 1:101 ack 1
0 > . 1:1 ack 102
0 state 6
0 readable 100

story data behind the peer's FIN is dropped
0 begin
0 < FP. 1:101 ack 1
0 > nothing
0 < P. 102:202 ack 1
0 > . 1:1 ack 102
0 readable 100

story data out of order behind a FIN that comes late is dropped
0 begin
0 < F. 101:101 ack 1
0 > . 1:1 ack 1 sack 101-102
0 < . 51:151 ack 1
0 > . 1:1 ack 1 sack 51-102
0 < . 1:51 ack 1
0 > . 1:1 ack 102
0 readable 100
0 state 6

story a repeated FIN is acknowledged in CLOSE-WAIT
0 begin
0 < F. 1:1 ack 1
0 > . 1:1 ack 2
0.200 < F. 1:1 ack 1
0.200 > . 1:1 ack 2
0.200 state 6

story in CLOSE-WAIT our data still leaves
0 begin
0 < F. 1:1 ack 1
0 > . 1:1 ack 2
0 write 3000
0 > P. 1:3001 ack 2
0.010 < . 2:2 ack 3001
0.010 shutdown
0.010 > F. 3001:3001 ack 2
0.010 state 8
0.020 < . 2:2 ack 3002
0.020 state 0
0.020 error 0

story a lost FIN is sent again
0 begin nosack
0 shutdown
0 > F. 1:1 ack 1
1 > F. 1:1 ack 1
3 > F. 1:1 ack 1
3.100 < . 1:1 ack 2
3.100 state 5

story FIN and ACK of ours in one segment lead to TIME-WAIT
0 begin
0 shutdown
0 > F. 1:1 ack 1
0.010 < F. 1:1 ack 2
0.010 > . 2:2 ack 2
0.010 state 9

story FIN without the ACK of ours leads to CLOSING
0 begin
0 shutdown
0 > F. 1:1 ack 1
0.010 < F. 1:1 ack 1
0.010 > . 2:2 ack 2
0.010 state 7
0.020 < . 2:2 ack 2
0.020 state 9

story a reset in CLOSE-WAIT is EPIPE
0 begin
0 < F. 1:1 ack 1
0 > . 1:1 ack 2
0 < R 2:2
0 error 32
0 state 0

story a reset in TIME-WAIT ends it
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < F. 1:1 ack 2
0 > . 2:2 ack 2
0 < R 2:2
0 state 0

story a reset with another number does not end TIME-WAIT
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < F. 1:1 ack 2
0 > . 2:2 ack 2
0 < R 3:3
0 state 9

story a repeated FIN starts TIME-WAIT anew
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < F. 1:1 ack 2
0 > . 2:2 ack 2
30 < F. 1:1 ack 2
30 > . 2:2 ack 2
60 state 9
89.999 state 9
90 state 0

story a half-closed connection lives while its socket does
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < . 1:1 ack 2
3600 state 5
3600 < P. 1:101 ack 2
3600 > . 2:2 ack 101
3600 readable 100

story close in SYN-SENT sends nothing
0 connect
0 > S 0:0 mss 1000
0 close
0 > nothing
0 state 0

story close in SYN-RECEIVED is a FIN after the handshake
0 accept
0 > S. 0:0 ack 1 mss 1000
0 shutdown
0.010 < . 1:1 ack 1
0.010 > F. 1:1 ack 1
0.010 state 4

story abort with unsent data drops it
0 begin closedwindow
0 write 100
0 abort
0 > R. 1:1 ack 1
0 unacked 0

story abort in TIME-WAIT sends nothing
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < F. 1:1 ack 2
0 > . 2:2 ack 2
0 abort
0 > nothing

story the FIN waits behind data that waits for the window
0 begin
0 < . 1:1 ack 1 win 1000
0 write 3000
0 > . 1:1001 ack 1
0 shutdown
0 > nothing
0.010 < . 1:1 ack 1001 win 1000
0.010 > . 1001:2001 ack 1
0.020 < . 1:1 ack 2001 win 5000
0.020 > FP. 2001:3001 ack 1
0.030 < . 1:1 ack 3002
0.030 state 5
