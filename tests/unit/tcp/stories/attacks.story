story a reset with the exact number ends the connection
0 begin
0 < R 1:1
0 state 0
0 error 104

story a reset inside the window is challenged
0 begin
0 < R 500:500
0 > . 1:1 ack 1
0 state 3

story a reset outside the window is ignored
0 begin
0 < R 100000:100000
0 > nothing
0 state 3

story a SYN on an established connection is challenged
0 begin
0 < S 1:1
0 > . 1:1 ack 1
0 state 3

story challenges are limited to two a second
0 begin
0 < S 1:1
0 > . 1:1 ack 1
0.100 < S 1:1
0.499 < S 1:1
0.499 > nothing
0.500 < S 1:1
0.500 > . 1:1 ack 1

story an ACK of unsent data is challenged and not used
0 begin
0 < P. 1:101 ack 5000
0 > . 1:1 ack 1
0 readable 0

story an ACK that is far too old is challenged and its data dropped
0 begin
0 < P. 1:101 ack 4294867296
0 > . 1:1 ack 1
0 readable 0

story PAWS drops an old timestamp
0 begin ts
0 < P. 1:101 ack 1 ts 50 100
0 > . 1:1 ack 1
0 readable 0
0 < P. 1:101 ack 1 ts 150 100
0 > . 1:1 ack 101
0 readable 100

story SACK blocks of unsent data are ignored
0 begin
0 write 1000
0 > P. 1:1001 ack 1
0 < . 1:1 ack 1 sack 5001-6001
0 > nothing
0.010 < . 1:1 ack 1001
0.010 repeats 0
