# Every state of the end of a connection: RFC 9293, 3.6, 3.10.4, 3.10.5, 3.10.7.4.

# RFC 9293, 3.10.7.4, seventh check: FIN-WAIT-1 takes text
story in FIN-WAIT-1 data is taken
0 begin
0 shutdown
0 > F. 1:1 ack 1
0.010 < P. 1:101 ack 1
0.010 > . 2:2 ack 101
0.010 state 4
0.010 readable 100

# RFC 9293, 3.10.7.4, fifth check: the ACK of the data is not that of the FIN
story FIN-WAIT-1 ends with the ACK of the FIN only
0 begin
0 write 100
0 > P. 1:101 ack 1
0 shutdown
0 > F. 101:101 ack 1
0.010 < . 1:1 ack 101
0.010 state 4
0.020 < . 1:1 ack 102
0.020 state 5

# RFC 9293, 3.10.7.4, second check
story a reset in FIN-WAIT-1 is told to the application
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < R 1:1
0 state 0
0 error 104

# RFC 9293, 3.10.7.4, second check
story a reset in FIN-WAIT-2 is told to the application
0 begin
0 shutdown
0 > F. 1:1 ack 1
0.010 < . 1:1 ack 2
0.010 state 5
0.020 < R 1:1
0.020 state 0
0.020 error 104

# RFC 9293, 3.10.7.4, second check; the error is Linux's, the RFC tells none
story a reset in CLOSING ends the connection
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < F. 1:1 ack 1
0 > . 2:2 ack 2
0 state 7
0 < R 2:2
0 state 0

# RFC 9293, 3.10.7.4, second check
story a reset in LAST-ACK ends the connection
0 begin
0 < F. 1:1 ack 1
0 > . 1:1 ack 2
0 shutdown
0 > F. 1:1 ack 2
0 < R 2:2
0 state 0

# RFC 5961, 3.2 in every synchronized state
story a reset within the window of FIN-WAIT-2 is challenged
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < . 1:1 ack 2
0 < R 100:100
0 > . 2:2 ack 1
0 state 5

# RFC 9293, 3.10.7.4, eighth check: CLOSING stays
story a repeated FIN in CLOSING is acknowledged
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < F. 1:1 ack 1
0 > . 2:2 ack 2
0.200 < F. 1:1 ack 1
0.200 > . 2:2 ack 2
0.200 state 7
0.210 < . 2:2 ack 2
0.210 state 9

# RFC 9293, 3.10.8: the retransmission queue of CLOSING holds the FIN
story in CLOSING the FIN is repeated until it is acknowledged
0 begin nosack
0 shutdown
0 > F. 1:1 ack 1
0 < F. 1:1 ack 1
0 > . 2:2 ack 2
1 > F. 1:1 ack 2
3 > F. 1:1 ack 2
3.100 < . 2:2 ack 2
3.100 state 9

# RFC 9293, 3.10.8
story in LAST-ACK the FIN is repeated until it is acknowledged
0 begin nosack
0 < F. 1:1 ack 1
0 > . 1:1 ack 2
0 shutdown
0 > F. 1:1 ack 2
1 > F. 1:1 ack 2
1.100 < . 2:2 ack 2
1.100 state 0
1.100 error 0

# RFC 9293, 3.10.7.4, eighth check: LAST-ACK stays
story a repeated FIN in LAST-ACK is acknowledged
0 begin
0 < F. 1:1 ack 1
0 > . 1:1 ack 2
0 shutdown
0 > F. 1:1 ack 2
0.010 < F. 1:1 ack 1
0.010 > . 2:2 ack 2
0.010 state 8
0.020 < . 2:2 ack 2
0.020 state 0

# RFC 9293, 3.10.8: data and FIN that are lost together
story a FIN is repeated behind the data before it
0 begin nosack
0 write 10
0 > P. 1:11 ack 1
0 write 10
0 shutdown
0 > FP. 11:21 ack 1
1 > . 1:11 ack 1
1 > FP. 11:21 ack 1
1.100 < . 1:1 ack 22
1.100 state 5

# RFC 9293, 3.10.7.4: data, the ACK of our FIN and the peer's FIN in one segment
story a FIN with data in FIN-WAIT-2 leads to TIME-WAIT and the data can be read
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < . 1:1 ack 2
0.010 < FP. 1:101 ack 2
0.010 > . 2:2 ack 102
0.010 state 9
0.010 end 0
0.010 see 100y
0.010 end 1

# RFC 9293, 3.10.7.4, eighth check
story a repeated FIN with its data is acknowledged in TIME-WAIT
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < . 1:1 ack 2
0.010 < FP. 1:101 ack 2
0.010 > . 2:2 ack 102
0.300 < FP. 1:101 ack 2
0.300 > . 2:2 ack 102
60.290 state 9
60.301 state 0

# RFC 5961, 4.2: a SYN in a synchronized state is answered by an ACK, whatever its number
story a SYN in TIME-WAIT is challenged
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < F. 1:1 ack 2
0 > . 2:2 ack 2
1 < S 50:50
1 > . 2:2 ack 2
1 state 9

# RFC 9293, 3.10.7.4, fourth check
story a SYN in CLOSE-WAIT is challenged
0 begin
0 < F. 1:1 ack 1
0 > . 1:1 ack 2
0.010 < S 2:2
0.010 > . 1:1 ack 2
0.010 state 6

# RFC 9293, 3.10.5: ABORT in FIN-WAIT-1 and FIN-WAIT-2 sends a reset
story abort in FIN-WAIT-2 sends a reset behind the FIN
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < . 1:1 ack 2
0 abort
0 > R. 2:2 ack 1
0 state 0

# RFC 9293, 3.10.5
story abort in CLOSE-WAIT sends a reset
0 begin
0 < F. 1:1 ack 1
0 > . 1:1 ack 2
0 abort
0 > R. 1:1 ack 2
0 state 0

# RFC 9293, 3.10.5: CLOSING and LAST-ACK end without a segment
story abort in CLOSING sends nothing
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < F. 1:1 ack 1
0 > . 2:2 ack 2
0 abort
0 > nothing
0 state 0

# RFC 9293, 3.10.5
story abort in LAST-ACK sends nothing
0 begin
0 < F. 1:1 ack 1
0 > . 1:1 ack 2
0 shutdown
0 > F. 1:1 ack 2
0 abort
0 > nothing
0 state 0

# RFC 9293, 3.10.3 and 3.10.4: after CLOSE there is no SEND, and no second FIN
story after shutdown nothing can be written and a second one sends nothing
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 refused 32
0 shutdown
0 > nothing
0 < . 1:1 ack 2
0 shutdown
0 > nothing
0 state 5

# RFC 9293, 3.10.4 with Linux's tcp_fin_timeout: the minute begins when nobody can read any more
story the minute of FIN-WAIT-2 begins with close
0 begin
0 shutdown
0 > F. 1:1 ack 1
0 < . 1:1 ack 2
100 state 5
100 close
159.999 state 5
160 state 0

# TCP_LINGER2 of tcp(7)
story TCP_LINGER2 shortens FIN-WAIT-2
0 begin
0 set linger2 5
0 close
0 > F. 1:1 ack 1
0.010 < . 1:1 ack 2
5 state 5
5.010 state 0

# RFC 1122, 4.2.2.13: unread data when the application has gone
story bytes that arrive with the FIN after close are answered by a reset
0 begin
0 close
0 > F. 1:1 ack 1
0.010 < FP. 1:101 ack 2
0.010 > R 2:2
0.010 state 0

# RFC 9293, 3.10.7.4, seventh check: text behind a FIN
story a peer that sends behind its FIN is not believed in LAST-ACK
0 begin
0 < F. 1:1 ack 1
0 > . 1:1 ack 2
0 shutdown
0 > F. 1:1 ack 2
0 < P. 2:102 ack 1
0 > . 2:2 ack 2
0 readable 0
0 state 8

# RFC 9293, 3.6, case 3, with data in both directions on the way
story both sides close while data is on the way
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0 shutdown
0 > F. 1001:1001 ack 1
0.010 < FP. 1:501 ack 1
0.010 > . 1002:1002 ack 502
0.010 state 7
0.020 < . 502:502 ack 1002
0.020 state 9
0.020 see 500y

# RFC 9293, 3.10.7.4, second check; recv(2) on Linux goes on to return 0
story a reset behind the peer's FIN is an error of sending only
0 begin
0 < FP. 1:101 ack 1
0 write 10
0 > P. 1:11 ack 102
0.010 < R 102:102
0.010 error 32
0.010 fin 0
0.010 see 100y
0.010 fin 1

# RFC 9293, 3.10.7.4, second check
story a reset without a FIN is no end of the stream
0 begin
0 < R 1:1
0 error 104
0 fin 0
