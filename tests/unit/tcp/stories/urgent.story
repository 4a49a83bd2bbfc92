story an urgent byte is marked and passed over
0 begin
0 < PU. 1:11 ack 1 urg 5
0 > . 1:1 ack 11
0 readable 4
0 read 4
0 mark 1
0 readable 5
0 read 5
0 mark 0

story inline urgent data is read in its place
0 begin
0 set inline 1
0 < PU. 1:11 ack 1 urg 5
0 > . 1:1 ack 11
0 read 4
0 mark 1
0 readable 6

story the urgent pointer is behind the urgent byte
0 begin
0 urgent 3
0 > P.U 1:4 ack 1 urg 3
0.010 < . 1:1 ack 4
0.010 write 1
0.010 > P. 4:5 ack 1
0.020 < . 1:1 ack 5
