story without SACK late duplicates start no second recovery
0 begin nosack
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1
0.100 < . 1:1 ack 1
0.100 < . 1:1 ack 1
0.100 > . 1:1001 ack 1
0.200 < . 1:1 ack 10001
0.200 write 5000
0.200 > P. 10001:15001 ack 1
0.210 < . 1:1 ack 10001
0.210 < . 1:1 ack 10001
0.210 < . 1:1 ack 10001
0.210 > nothing
0.300 < . 1:1 ack 15001
0.300 repeats 1

story a time-out in recovery reduces no second time
0 begin nosack
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1
0.100 < . 1:1 ack 1
0.100 < . 1:1 ack 1
0.100 > . 1:1001 ack 1
0.100 ssthresh 7000
1.099 > nothing
1.100 > . 1:1001 ack 1
1.100 ssthresh 7000
1.100 cwnd 1000
1.200 < . 1:1 ack 10001

story NewReno halves
0 begin reno
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1 sack 1001-4001
0.100 > . 1:1001 ack 1
0.100 ssthresh 5000
0.200 < . 1:1 ack 10001
0.200 cwnd 6000

story a recovery sends in proportion to what arrives
0 begin
0 write 20000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1 sack 1001-2001
0.100 > . 10001:11001 ack 1
0.100 < . 1:1 ack 1 sack 1001-3001
0.100 > . 11001:12001 ack 1
0.100 < . 1:1 ack 1 sack 1001-4001
0.100 > . 1:1001 ack 1
0.100 ssthresh 7000
0.100 < . 1:1 ack 1 sack 1001-5001
0.100 > . 12001:13001 ack 1
0.100 < . 1:1 ack 1 sack 1001-6001
0.100 > . 13001:14001 ack 1
0.100 < . 1:1 ack 1 sack 1001-7001
0.100 > nothing
0.100 < . 1:1 ack 1 sack 1001-8001
0.100 > nothing
0.200 < . 1:1 ack 14001
0.200 cwnd 7529
0.200 > P. 14001:20001 ack 1
0.300 < . 1:1 ack 20001

# RFC 5681, 4.3
story a loss of what left during a recovery reduces the window again
0 begin reno
0 write 14000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1 sack 1001-4001
0.100 > . 1:1001 ack 1
0.100 > . 10001:11001 ack 1
0.100 ssthresh 5000
0.101 < . 1:1 ack 1 sack 1001-10001
0.101 > P. 11001:14001 ack 1
0.202 < . 1:1 ack 1 sack 1001-10001 sack 11001-14001
0.202 > . 1:1001 ack 1
0.202 > . 10001:11001 ack 1
0.302 < . 1:1 ack 10001 sack 11001-14001
0.302 ssthresh 2000
0.400 < . 1:1 ack 14001

story many losses do not stop the recovery
0 begin
0 write 20000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1 sack 7001-10001
0.100 > P. 1:3001 ack 1
0.110 lost 4000
0.200 < . 1:1 ack 1001 sack 7001-10001
0.200 > P. 3001:5001 ack 1
0.210 < . 1:1 ack 2001 sack 7001-10001
0.210 > P. 5001:7001 ack 1
0.300 < . 1:1 ack 5001 sack 7001-10001
0.300 > P. 10001:14001 ack 1
0.400 < . 1:1 ack 14001
0.400 > P. 14001:20001 ack 1
0.500 < . 1:1 ack 20001

story a repeat that is lost as well is found by what left after it
0 begin
0 write 20000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1 sack 1001-4001
0.100 > . 1:1001 ack 1
0.101 < . 1:1 ack 1 sack 1001-10001
0.101 > P. 10001:16001 ack 1
0.201 < . 1:1 ack 1 sack 1001-12001
0.201 > . 1:1001 ack 1
0.201 > P. 16001:18001 ack 1
0.300 < . 1:1 ack 18001
0.300 > P. 18001:20001 ack 1
0.400 < . 1:1 ack 20001

story the peer takes its SACKs back: after a time-out all is sent again
0 begin
0 write 4000
0 > P. 1:4001 ack 1
0.100 < . 1:1 ack 1 sack 1001-4001
0.100 > . 1:1001 ack 1
0.200 < . 1:1 ack 1001
0.500 > . 1001:2001 ack 1
0.600 < . 1:1 ack 2001
0.600 > P. 2001:4001 ack 1
0.700 < . 1:1 ack 4001

story a small reordering repeats nothing
0 begin
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1001
0.101 < . 1:1 ack 1001 sack 2001-3001
0.101 < . 1:1 ack 1001 sack 2001-4001
0.102 < . 1:1 ack 4001
0.102 reorderings 1
0.102 repeats 0
0.200 < . 1:1 ack 10001

story after reordering was seen three packets beyond a gap are no proof
0 begin
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1001
0.101 < . 1:1 ack 1001 sack 2001-3001
0.102 < . 1:1 ack 3001
0.102 reorderings 1
0.103 < . 1:1 ack 3001 sack 4001-9001
0.103 > nothing
0.110 < . 1:1 ack 10001
0.110 repeats 0

# RFC 6298, 5.1, as Linux reads it: the time-out is that of the first packet, which was sent again
story the repeat of the first packet starts the time-out anew
0 begin
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1 sack 1001-4001
0.100 > . 1:1001 ack 1
0.399 timeouts 0
0.400 > . 1:1001 ack 1
0.400 timeouts 1
0.500 < . 1:1 ack 10001
