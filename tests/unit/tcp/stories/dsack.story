# Duplicates that are told: RFC 2883, 4, and SACK blocks: RFC 2018, 4.

# RFC 2883, 4.1.2: below the ACK and with a gap above it
story a duplicate is told before the ranges
0 begin
0 < . 1:501 ack 1
0 > . 1:1 ack 501
0 < . 1001:1501 ack 1
0 > . 1:1 ack 501 sack 1001-1501
0 < . 1:501 ack 1
0 > . 1:1 ack 501 sack 1-501 sack 1001-1501

# RFC 2883, 4.1.3: a part of a larger range
story a duplicate out of order is told before the range that holds it
0 begin
0 < . 1001:1501 ack 1
0 > . 1:1 ack 1 sack 1001-1501
0 < . 501:1001 ack 1
0 > . 1:1 ack 1 sack 501-1501
0 < . 1001:1501 ack 1
0 > . 1:1 ack 1 sack 1001-1501 sack 501-1501

# RFC 2883, 4: each duplicate is reported at most once
story a duplicate is told once
0 begin
0 < . 1:501 ack 1
0 > . 1:1 ack 501
0 < . 1:501 ack 1
0 > . 1:1 ack 501 sack 1-501
0 < . 501:1001 ack 1
0 > . 1:1 ack 1001

# RFC 2883, 4.2.1, example 4: 501 to 1001 was delayed, and sent again in a larger segment
story the delayed first copy is told when it comes behind a larger one
0 begin
0 < . 1:501 ack 1
0 > . 1:1 ack 501
0 < . 501:1501 ack 1
0 > . 1:1 ack 1501
0 < . 501:1001 ack 1
0 > . 1:1 ack 1501 sack 501-1001

# RFC 2883, 4.2.1, example 5: of two parts that are duplicates the first is told
story of two duplicate parts of a segment the first one is told
0 begin
0 < . 1:501 ack 1
0 > . 1:1 ack 501
0 < . 1001:1501 ack 1
0 > . 1:1 ack 501 sack 1001-1501
0 < . 2001:2501 ack 1
0 > . 1:1 ack 501 sack 2001-2501 sack 1001-1501
0 < . 501:2501 ack 1
0 > . 1:1 ack 2501 sack 1001-1501
0 readable 2500

# RFC 2883, 4.2.2, example 6: the part is within a range that waits
story a duplicate part of a segment behind a gap is told
0 begin
0 < . 1001:1501 ack 1
0 > . 1:1 ack 1 sack 1001-1501
0 < . 501:2001 ack 1
0 > . 1:1 ack 1 sack 1001-1501 sack 501-2001

# RFC 2883, 4.2: the first duplicate part is the one before RCV.NXT
story a part that was acknowledged is told before a part that waits
0 begin
0 < . 1:501 ack 1
0 > . 1:1 ack 501
0 < . 701:801 ack 1
0 > . 1:1 ack 501 sack 701-801
0 < . 401:901 ack 1
0 > . 1:1 ack 901 sack 401-501

# RFC 2018, 3: at most three blocks beside time stamps, the duplicate is one of them
story with time stamps a duplicate leaves room for two ranges
0 begin ts
0 < . 1001:1101 ack 1 ts 150 100
0 > . 1:1 ack 1 sack 1001-1101
0 < . 2001:2101 ack 1 ts 150 100
0 > . 1:1 ack 1 sack 2001-2101 sack 1001-1101
0 < . 3001:3101 ack 1 ts 150 100
0 > . 1:1 ack 1 sack 3001-3101 sack 2001-2101 sack 1001-1101
0 < . 3001:3101 ack 1 ts 150 100
0 > . 1:1 ack 1 sack 3001-3101 sack 3001-3101 sack 2001-2101

# RFC 2018, 4: an ACK with a gap is sent for each segment, also when the FIN comes first
story a duplicate FIN behind a gap changes nothing
0 begin
0 < F. 101:201 ack 1
0 > . 1:1 ack 1 sack 101-202
0 < F. 101:201 ack 1
0 > . 1:1 ack 1 sack 101-202 sack 101-202
0 < . 1:101 ack 1
0 > . 1:1 ack 202
0 state 6

# RFC 2883, 5: the sender's side, the ACK of a duplicate is no sign of loss
story duplicates that the peer tells are no loss
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 < . 1:1 ack 1001
0.010 < . 1:1 ack 1001 sack 1-1001
0.010 < . 1:1 ack 1001 sack 1-1001
0.010 < . 1:1 ack 1001 sack 1-1001
0.010 > nothing
0.010 recovering 0
0.010 < . 1:1 ack 3001

# RFC 2883, 5, (2): the first block lies in the second one
story a duplicate told within a range counts as one and the range as SACKed
0 begin
0 write 3000
0 > P. 1:3001 ack 1
0.010 < . 1:1 ack 1 sack 2001-3001 sack 2001-3001
0.010 dsacks 1
0.010 sacked 1000
0.010 < . 1:1 ack 3001
