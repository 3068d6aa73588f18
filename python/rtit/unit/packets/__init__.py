"""From state to bytes: the packets, their compression, time, PSB+ and overflow
(33.3.6 to 33.3.8, 33.4.2).
"""
