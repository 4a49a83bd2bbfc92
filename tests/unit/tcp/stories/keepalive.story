story an idle connection is probed and given up after nine probes
0 begin
0 set keepalive 10
10 > . 0:0 ack 1
10.010 < . 1:1 ack 1
20.010 > . 0:0 ack 1
95.010 > . 0:0 ack 1
170.010 > . 0:0 ack 1
245.010 > . 0:0 ack 1
320.010 > . 0:0 ack 1
395.010 > . 0:0 ack 1
470.010 > . 0:0 ack 1
545.010 > . 0:0 ack 1
620.010 > . 0:0 ack 1
695.010 > R. 1:1 ack 1
695.010 error 110

story a keepalive probe of the peer is answered
0 begin
0 < . 0:0 ack 1
0 > . 1:1 ack 1
