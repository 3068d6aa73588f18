"""The trace unit: turns what a processor does into Intel PT packets in memory (chapter 33).

`TraceUnit` in `trace_unit` lists every event. An event is a function in `events/` with the unit
(`core.Unit`) as its first parameter. An event runs in three steps:

1. It updates the architectural state, and `enables` computes FilterEn, ContextEn and PacketEn for
   the place where execution goes on.
2. It emits packets (`control_flow_packets`, `timing_packets`) into `Unit.packets`.
3. `stream.commit` writes all of them to `output`, or discards all of them in an `overflow`, and
   inserts a PSB+ when the byte count demands one.

`state` and `arch_state` are plain values, so that a unit between two events can be saved, compared
and restored (`snapshots`). `parameters` lists the choices that the chapter leaves to a processor.
"""
