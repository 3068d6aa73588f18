/* For inlined.c: functions of a header, inlined into one another. */

static inline __attribute__((always_inline)) int twice(int x) {
    return external(x) * 2;
}

static inline __attribute__((always_inline)) int four_times(int x) {
    int half = twice(x);
    return half * 2;
}
