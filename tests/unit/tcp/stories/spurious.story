story F-RTO: an ACK of data that was not repeated shows that the time-out was needless
0 begin
0 write 20000
0 > P. 1:10001 ack 1
1 > . 10001:11001 ack 1
2 > . 1:1001 ack 1
2 cwnd 1000
2.100 < . 1:1 ack 1001
2.100 > P. 11001:13001 ack 1
2.110 < . 1:1 ack 2001
2.110 undone 1
2.200 < . 1:1 ack 13001
2.200 > P. 13001:20001 ack 1
2.300 < . 1:1 ack 20001
2.300 repeats 1

story F-RTO: a duplicate after the first ACK shows that data was lost
0 begin
0 write 20000
0 > P. 1:10001 ack 1
1 > . 10001:11001 ack 1
2 > . 1:1001 ack 1
2.100 < . 1:1 ack 1001
2.100 > P. 11001:13001 ack 1
2.200 < . 1:1 ack 1001 sack 11001-12001
2.200 > . 1001:2001 ack 1
2.200 undone 0
2.300 < . 1:1 ack 13001
2.300 > P. 13001:20001 ack 1
2.400 < . 1:1 ack 20001

story F-RTO: without new data the rest is repeated
0 begin
0 write 5000
0 > P. 1:5001 ack 1
1 > P. 4001:5001 ack 1
2 > . 1:1001 ack 1
2.100 < . 1:1 ack 1001
2.100 > P. 1001:3001 ack 1
2.200 < . 1:1 ack 5001

story F-RTO without SACK: two ACKs that advance
0 begin nosack
0 write 20000
0 > P. 1:10001 ack 1
1 > . 1:1001 ack 1
1.100 < . 1:1 ack 1001
1.100 > P. 10001:12001 ack 1
1.110 < . 1:1 ack 2001
1.110 undone 1
1.110 > . 12001:13001 ack 1
1.200 < . 1:1 ack 13001
1.200 > P. 13001:20001 ack 1
1.300 < . 1:1 ack 20001

story F-RTO without SACK: a jump behind the repeat proves nothing
0 begin nosack
0 write 20000
0 > P. 1:10001 ack 1
1 > . 1:1001 ack 1
1.100 < . 1:1 ack 5001
1.100 undone 0
1.100 > P. 10001:16001 ack 1
1.200 < . 1:1 ack 5001
1.200 undone 0
1.200 > . 5001:6001 ack 1
1.300 < . 1:1 ack 16001
1.300 > P. 16001:20001 ack 1
1.400 < . 1:1 ack 20001

story a second time-out is a real one
0 begin
0 write 20000
0 > P. 1:10001 ack 1
1 > . 10001:11001 ack 1
2 > . 1:1001 ack 1
4 > . 1:1001 ack 1
4.100 < . 1:1 ack 1001
4.100 > P. 1001:3001 ack 1
4.200 < . 1:1 ack 11001
4.200 undone 0
4.200 > P. 11001:18001 ack 1
4.300 < . 1:1 ack 18001
4.300 > P. 18001:20001 ack 1
4.400 < . 1:1 ack 20001

story a timestamp shows that the first copy was acknowledged
0 begin ts nosack
0 write 4940
0 > P. 1:4941 ack 1
1 > . 1:989 ack 1
1.001 < . 1:1 ack 989 ts 150 101
1.001 undone 1
1.100 < . 1:1 ack 4941 ts 150 101
1.100 repeats 1

story a timestamp of the repeat undoes nothing
0 begin ts nosack
0 write 4940
0 > P. 1:4941 ack 1
1 > . 1:989 ack 1
1.100 < . 1:1 ack 989 ts 150 1100
1.100 undone 0
1.100 > P. 989:2965 ack 1
1.200 < . 1:1 ack 4941 ts 150 1200

story a DSACK of all repeats undoes the recovery
0 begin
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1 sack 1001-4001
0.100 > . 1:1001 ack 1
0.101 < . 1:1 ack 10001
0.101 cwnd 7529
0.200 < . 1:1 ack 10001 sack 1-1001
0.200 dsacks 1
0.200 undone 1
0.200 cwnd 10000

story a DSACK of a tail probe is no loss and undoes no earlier reduction
0 begin
0 write 10000
0 > P. 1:10001 ack 1
0.100 < . 1:1 ack 1 sack 1001-10001
0.100 > . 1:1001 ack 1
0.200 < . 1:1 ack 10001
0.200 cwnd 7075
0.200 write 3000
0.200 > P. 10001:13001 ack 1
0.402 > P. 12001:13001 ack 1
0.500 < . 1:1 ack 13001 sack 12001-13001
0.500 undone 0
0.500 cwnd 7075
