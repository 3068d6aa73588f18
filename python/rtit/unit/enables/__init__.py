"""When the unit traces: the enables, the filters, TraceEn and the MSRs
(sections 33.2.5, 33.2.6, 33.2.8).
"""
