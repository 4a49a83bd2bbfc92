story an active open
0 connect
0 > S 0:0 mss 1000
0.010 < S. 0:0 ack 1 mss 1000
0.010 > . 1:1 ack 1
0.010 state 3

story a passive open
0 accept
0 > S. 0:0 ack 1 mss 1000
0.010 < . 1:1 ack 1
0.010 state 3

story a SYN is repeated after 1, 2, 4 seconds
0 connect
0 > S 0:0 mss 1000
1 > S 0:0 mss 1000
3 > S 0:0 mss 1000
7 > S 0:0 mss 1000
15 > S 0:0 mss 1000
31 > S 0:0 mss 1000
63 > S 0:0 mss 1000
126.999 state 1
127 error 110
127 state 0

story a reset refuses the connection
0 connect
0 > S 0:0 mss 1000
0.010 < R. 0:0 ack 1
0.010 error 111
0.010 state 0

story a reset with a wrong ACK does not
0 connect
0 > S 0:0 mss 1000
0.010 < R. 0:0 ack 7
0.010 state 1

story a SYN-ACK with a wrong ACK is answered by a reset
0 connect
0 > S 0:0 mss 1000
0.010 < S. 0:0 ack 7
0.010 > R 7:7
0.010 state 1

story both open at once
0 connect
0 > S 0:0 mss 1000
0.010 < S 0:0 mss 1000
0.010 > S. 0:0 ack 1 mss 1000
0.010 state 2
0.020 < S. 0:0 ack 1 mss 1000
0.020 > . 1:1 ack 1
0.020 state 3

story the peer repeats its SYN when our answer was lost
0 accept
0 > S. 0:0 ack 1 mss 1000
0.500 < S 0:0 mss 1000
0.500 > S. 0:0 ack 1 mss 1000
0.510 < . 1:1 ack 1
0.510 state 3

story data with the last ACK of the handshake is taken
0 accept
0 > S. 0:0 ack 1 mss 1000
0.010 < P. 1:101 ack 1
0.010 > . 1:1 ack 101
0.010 readable 100

story data written before the handshake leaves after it
0 connect
0 > S 0:0 mss 1000
0 write 100
0.010 < S. 0:0 ack 1 mss 1000
0.010 > P. 1:101 ack 1
0.020 < . 1:1 ack 101
0.020 unacked 0

# RFC 9293, 3.10.7.3, first check; Linux: the RST has ended what the peer took us for
story a SYN-ACK of something else is reset and the SYN repeated soon
0 connect
0 > S 0:0 mss 1000
0.100 < S. 0:0 ack 77 mss 1000
0.100 > R 77:77
0.101 > nothing
0.102 > S 0:0 mss 1000
0.200 < S. 0:0 ack 1 mss 1000
0.200 > . 1:1 ack 1
0.200 state 3
