# RACK-TLP: RFC 8985.

# RFC 8985, 6.2, step 5: sent at 0, RTT 103 ms, a quarter of the least RTT of 100 ms
story the reordering window passes and the gap is repeated
0 begin
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1001
0.101 < . 1:1 ack 1001 sack 2001-3001
0.102 < . 1:1 ack 3001
0.102 reorderings 1
0.103 < . 1:1 ack 3001 sack 4001-9001
0.127 > nothing
0.128 > . 3001:4001 ack 1
0.200 < . 1:1 ack 10001
0.200 repeats 1

# RFC 8985, 6.2, step 4: each round trip with a DSACK adds a quarter
story a duplicate widens the reordering window
0 begin
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1001
0.101 < . 1:1 ack 1001 sack 2001-3001
0.102 < . 1:1 ack 3001 sack 1-1001
0.103 < . 1:1 ack 3001 sack 4001-9001
0.152 > nothing
0.153 > . 3001:4001 ack 1
0.200 < . 1:1 ack 10001

# RFC 8985, 6.2, step 4: below three SACKed packets the window is a quarter of the least RTT
story two SACKed packets prove a loss after a quarter of the round trip
0 begin
0 write 5000
0 > P. 1:5001 ack 1
0.100 < . 1:1 ack 1 sack 1001-3001
0.124 > nothing
0.125 > . 1:1001 ack 1
0.200 < . 1:1 ack 5001
0.200 repeats 1

# RFC 8985, 6.2, step 4: three SACKed packets are proof at once
story two gaps are repeated at once
0 begin
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1001 sack 2001-4001 sack 5001-8001
0.100 > . 1001:2001 ack 1
0.100 > . 4001:5001 ack 1
0.200 < . 1:1 ack 10001
0.200 repeats 2

# RFC 8985, 7.2: two round trips, with one segment in flight the longest delayed ACK is added, at most until the RTO
story a single segment is probed when the time-out is due, and the window stays
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.100 rto 300
0.100 write 1000
0.100 > P. 1001:2001 ack 1
0.399 > nothing
0.400 > P. 1001:2001 ack 1
0.400 probes 1
0.400 timeouts 0
0.400 cwnd 10000
0.500 < . 1:1 ack 2001

# RFC 8985, 7.2: without a measurement PTO is a second, the same as the RTO
story the first flight is probed after a second
0 begin
0 write 3000
0 > P. 1:3001 ack 1
1 > P. 2001:3001 ack 1
1 timeouts 0
1 cwnd 10000
1.100 < . 1:1 ack 3001

# RFC 8985, 7.3: after the probe the RTO runs anew, and no second probe leaves
story the time-out comes after the probe
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.100 write 3000
0.100 > P. 1001:4001 ack 1
0.302 > P. 3001:4001 ack 1
0.601 > nothing
0.602 > . 1001:2001 ack 1
0.602 timeouts 1
0.602 cwnd 1000
0.700 < . 1:1 ack 4001

# RFC 8985, 7.3: new data is the better probe
story new data is the probe when there is some
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.100 write 20000
0.100 > P. 1001:11001 ack 1
0.302 > . 11001:12001 ack 1
0.302 repeats 0
0.400 < . 1:1 ack 12001
0.400 > P. 12001:21001 ack 1
0.500 < . 1:1 ack 21001

# RFC 8985, 7.3: the probe does not go beyond the peer's window
story a closed window has the last packet probed
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001 win 3000
0.100 write 5000
0.100 > P. 1001:4001 ack 1
0.302 > . 3001:4001 ack 1
0.400 < . 1:1 ack 4001 win 65535
0.400 > P. 4001:6001 ack 1
0.500 < . 1:1 ack 6001

# RFC 8985, 7.3 and 6.2: the SACK of the probe shows what is lost
story the SACK of a probe begins the recovery
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.100 write 3000
0.100 > P. 1001:4001 ack 1
0.302 > P. 3001:4001 ack 1
0.402 < . 1:1 ack 1001 sack 3001-4001
0.402 > . 1001:2001 ack 1
0.402 recovering 1
0.402 timeouts 0
0.402 lost 1000
0.502 < . 1:1 ack 2001 sack 3001-4001
0.502 > . 2001:3001 ack 1
0.602 < . 1:1 ack 4001

# RFC 8985, 7.4.2: the probe has repaired a loss, which is a congestion
story a probe that repairs a loss reduces the window
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.100 write 3000
0.100 > P. 1001:4001 ack 1
0.302 > P. 3001:4001 ack 1
0.402 < . 1:1 ack 4001
0.402 cwnd 10000
0.402 write 1000
0.402 > P. 4001:5001 ack 1
0.502 < . 1:1 ack 5001
0.502 cwnd 7000
0.502 ssthresh 7000

# RFC 8985, 7.4.2, case 1: the ACK of the first copy was late, the second copy is told as a duplicate
story a probe that came twice reduces nothing
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.100 write 3000
0.100 > P. 1001:4001 ack 1
0.302 > P. 3001:4001 ack 1
0.310 < . 1:1 ack 4001
0.402 < . 1:1 ack 4001 sack 3001-4001
0.402 write 1000
0.402 > P. 4001:5001 ack 1
0.502 < . 1:1 ack 5001
0.502 cwnd 10000

# RFC 8985, 7.4.2, case 2: a peer that does not tell duplicates
story a second ACK of a probe reduces nothing
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.100 write 3000
0.100 > P. 1001:4001 ack 1
0.302 > P. 3001:4001 ack 1
0.310 < . 1:1 ack 4001
0.402 < . 1:1 ack 4001
0.402 write 1000
0.402 > P. 4001:5001 ack 1
0.502 < . 1:1 ack 5001
0.502 cwnd 10000

# RFC 8985, 7.1: only one probe for a tail; the ACK of new data allows the next
story a new flight is probed anew
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.100 write 3000
0.100 > P. 1001:4001 ack 1
0.302 > P. 3001:4001 ack 1
0.310 < . 1:1 ack 4001 sack 3001-4001
0.310 write 3000
0.310 > P. 4001:7001 ack 1
0.310 probes 1
0.511 > nothing
0.512 > P. 6001:7001 ack 1
0.512 probes 2
0.640 < . 1:1 ack 7001

# RFC 8985, 6.2, step 4: the least RTT is 50 ms now
story one SACKed packet proves a loss after a quarter of the least round trip
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0.100 < . 1:1 ack 1001
0.100 write 4000
0.100 > P. 1001:5001 ack 1
0.150 < . 1:1 ack 1001 sack 2001-3001
0.162 > nothing
0.163 > . 1001:2001 ack 1
0.200 < . 1:1 ack 3001
0.200 unacked 2000
0.250 < . 1:1 ack 5001

# RFC 8985, 6.3; RFC 2018, 8: what is SACKed stays so when the first packet is not
story after a time-out SACKed packets are not repeated
0 begin
0 write 4000
0 > P. 1:4001 ack 1
0.100 < . 1:1 ack 1 sack 2001-3001
0.125 > . 1:1001 ack 1
0.424 > nothing
0.425 in_loss 1
0.425 sacked 1000
0.425 > . 1:1001 ack 1
0.525 < . 1:1 ack 1001 sack 2001-3001
0.525 > . 1001:2001 ack 1
0.525 > P. 3001:4001 ack 1
0.625 < . 1:1 ack 4001
