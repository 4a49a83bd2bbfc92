# Loss recovery without SACK and the reaction of the windows: RFC 5681, 6582, 3042, 6298.

# RFC 5681, 3.1, (4): FlightSize / 2
story NewReno halves the flight for a fast retransmit
0 begin reno nosack
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1
0.100 < . 1:1 ack 1
0.100 < . 1:1 ack 1
0.100 > . 1:1001 ack 1
0.100 ssthresh 5000
0.200 < . 1:1 ack 10001
0.200 cwnd 6000

# RFC 5681, 3.1, (4): at least two segments
story the threshold is half of the window, however little is in flight
0 begin reno nosack
0 write 3500
0 > P. 1:3501 ack 1
0.100 < . 1:1 ack 1
0.100 < . 1:1 ack 1
0.100 < . 1:1 ack 1
0.100 > . 1:1001 ack 1
0.100 ssthresh 5000
0.200 < . 1:1 ack 3501

story the threshold is two segments at least
0 begin reno nosack
0 write 1000
0 > P. 1:1001 ack 1
1 > P. 1:1001 ack 1
1.100 < . 1:1 ack 1001
1.100 cwnd 2000
1.100 write 2000
1.100 > P. 1001:3001 ack 1
3.100 > . 1001:2001 ack 1
3.100 ssthresh 2000
3.200 < . 1:1 ack 3001

# RFC 5681, 3.1, (4) after a time-out
story a time-out halves the flight and leaves one segment
0 begin reno nosack
0 write 10000
0 > P. 1:10001 ack 1
1 > . 1:1001 ack 1
1 ssthresh 5000
1 cwnd 1000
1.100 < . 1:1 ack 10001

# RFC 9438, 4.6: 0.7 of the window
story CUBIC keeps seven tenths after a time-out
0 begin nosack
0 write 10000
0 > P. 1:10001 ack 1
1 > . 1:1001 ack 1
1 ssthresh 7000
1 cwnd 1000
1.100 < . 1:1 ack 10001

# RFC 5681, 3.1: the threshold is held when the same segment times out again
story a second time-out of the same segment reduces nothing further
0 begin reno nosack
0 write 10000
0 > P. 1:10001 ack 1
1 > . 1:1001 ack 1
1 ssthresh 5000
3 > . 1:1001 ack 1
3 ssthresh 5000
3.100 < . 1:1 ack 10001

# RFC 5681, 3.1, (2): slow start up to the threshold after a time-out
story after a time-out the window grows by a segment for each ACK
0 begin reno nosack
0 write 10000
0 > P. 1:10001 ack 1
1 > . 1:1001 ack 1
1.100 < . 1:1 ack 1001
1.100 cwnd 2000
1.100 > P. 1001:3001 ack 1
1.200 < . 1:1 ack 2001
1.200 cwnd 3000
1.200 > P. 3001:5001 ack 1
1.200 < . 1:1 ack 3001
1.200 cwnd 4000
1.200 > P. 5001:7001 ack 1
1.300 < . 1:1 ack 10001

# RFC 5681, 2, (e): the window has changed
story ACKs with other windows are no duplicates
0 begin nosack
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1 win 60000
0.100 < . 1:1 ack 1 win 59000
0.100 < . 1:1 ack 1 win 58000
0.100 < . 1:1 ack 1 win 57000
0.100 > nothing
0.200 < . 1:1 ack 10001

# RFC 5681, 2, (b): it carries data
story ACKs with data are no duplicates
0 begin nosack
0 write 10000
0 > P. 1:10001 ack 1
0.100 < P. 1:101 ack 1
0.100 > . 10001:10001 ack 101
0.100 < P. 101:201 ack 1
0.100 > . 10001:10001 ack 201
0.100 < P. 201:301 ack 1
0.100 > . 10001:10001 ack 301
0.100 repeats 0
0.200 < . 301:301 ack 10001

# RFC 5681, 2, (a): nothing is outstanding
story ACKs that repeat when nothing is in flight are no duplicates
0 begin nosack
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.110 < . 1:1 ack 1001
0.110 < . 1:1 ack 1001
0.110 < . 1:1 ack 1001
0.110 write 4000
0.110 > P. 1001:5001 ack 1
0.120 < . 1:1 ack 1001
0.120 < . 1:1 ack 1001
0.120 > nothing
0.200 < . 1:1 ack 5001
0.200 repeats 0

# RFC 6582, 3.2, step 1 and 4.1: duplicates below `recover` after a time-out
story duplicates after a time-out start no fast retransmit
0 begin nosack
0 write 10000
0 > P. 1:10001 ack 1
1 > . 1:1001 ack 1
1.010 < . 1:1 ack 1
1.010 < . 1:1 ack 1
1.010 < . 1:1 ack 1
1.010 < . 1:1 ack 1
1.010 > nothing
1.100 < . 1:1 ack 10001
1.100 repeats 1

# RFC 3042, 2: the peer's window must allow it
story limited transmit stays within the peer's window
0 begin nosack
0 < . 1:1 ack 1 win 10000
0 write 20000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1 win 10000
0.100 < . 1:1 ack 1 win 10000
0.100 > nothing
0.100 < . 1:1 ack 1 win 10000
0.100 > . 1:1001 ack 1
0.200 < . 1:1 ack 10001 win 65535
0.200 > P. 10001:17001 ack 1
0.300 < . 1:1 ack 17001
0.300 > P. 17001:20001 ack 1
0.400 < . 1:1 ack 20001

# RFC 3042, 2: no data beyond two segments more than the window
story without new data duplicates send nothing before the third
0 begin nosack
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1
0.100 < . 1:1 ack 1
0.100 > nothing
0.200 < . 1:1 ack 10001
0.200 cwnd 18000

# RFC 6298, (2.2) and (2.3): RTTVAR 62.5 ms, SRTT 112.5 ms
story the second measurement is weighed as the RFC says
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.100 srtt 100
0.100 rttvar 50
0.100 rto 300
0.100 write 1000
0.100 > P. 1001:2001 ack 1
0.300 < . 1:1 ack 2001
0.300 rttvar 62
0.300 srtt 112
0.300 rto 362

# RFC 6298, (5.3)
story an ACK of new data starts the time-out again
0 begin nosack
0 set nodelay 1
0 write 1000
0 > P. 1:1001 ack 1
0.050 write 1000
0.050 > P. 1001:2001 ack 1
0.100 < . 1:1 ack 1001
0.100 rto 300
0.399 > nothing
0.400 > P. 1001:2001 ack 1
0.500 < . 1:1 ack 2001

# RFC 6298, (5.3): only an ACK of new data
story a duplicate ACK does not start the time-out again
0 begin nosack
0 write 1000
0 > P. 1:1001 ack 1
0.900 < . 1:1 ack 1
1 > P. 1:1001 ack 1
1.100 < . 1:1 ack 1001

# RFC 6298, (5.2)
story the time-out stops when all is acknowledged
0 begin nosack
0 write 1000
0 > P. 1:1001 ack 1
0.500 < . 1:1 ack 1001
1000 > nothing
1000 timeouts 0

# RFC 6298, (5.5)
story a measured time-out doubles as well
0 begin nosack
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.100 write 1000
0.100 > P. 1001:2001 ack 1
0.400 > P. 1001:2001 ack 1
1 > P. 1001:2001 ack 1
2.200 > P. 1001:2001 ack 1
2.300 < . 1:1 ack 2001

# RFC 1122, 4.2.3.5: R2 counts repeats
story the number of repeats ends a connection
0 begin nosack
0 set retries 2
0 write 1000
0 > P. 1:1001 ack 1
1 > P. 1:1001 ack 1
3 > P. 1:1001 ack 1
6.999 state 3
7 state 0
7 error 110

# RFC 1122, 4.2.3.5: an ACK of new data begins the count anew
story an ACK of new data begins the count of repeats anew
0 begin nosack
0 set retries 2
0 set nodelay 1
0 write 500
0 > P. 1:501 ack 1
0 write 500
0 > P. 501:1001 ack 1
1 > . 1:501 ack 1
1 > P. 501:1001 ack 1
3 > . 1:501 ack 1
3 > P. 501:1001 ack 1
3.500 < . 1:1 ack 501
7.500 > P. 501:1001 ack 1
15.500 > P. 501:1001 ack 1
15.600 < . 1:1 ack 1001
15.600 error 0
