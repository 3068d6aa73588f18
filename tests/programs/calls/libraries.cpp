/* C++ exceptions through three libraries. PART: the number of the library, 0 for the program. */
#if PART == 0
#include "entry_log.h"
#else
#define UNLOGGED __attribute__((no_instrument_function))
#define NOINLINE __attribute__((noinline))
#endif

static volatile int sum;

NOINLINE static int work(int count)
{
    for (int i = 0; i < count; i++)
        sum += i ^ count;
    return sum;
}

int catch_in_first(int depth, int level);
int rethrow_in_second(int depth);
int throw_in_third(int depth);

#if PART == 0
/* An exception leaves all three libraries if `level` is 0. */
NOINLINE static int catch_in_program(int depth, int level)
{
    try {
        return catch_in_first(depth, level);
    } catch (int value) {
        return work(value);
    }
}

UNLOGGED int main()
{
    for (int depth = 0; depth < 4; depth++)
        for (int level = 0; level < 3; level++)
            catch_in_program(depth, level);
    write_log();
}
#elif PART == 1
int catch_in_first(int depth, int level)
{
    if (!level)
        return rethrow_in_second(depth) + work(1);
    try {
        return level > 1 ? catch_in_first(depth, level - 1) : rethrow_in_second(depth);
    } catch (int value) {
        work(value + 2);
        if (level > 1)
            throw;
        throw value + 1;
    }
}
#elif PART == 2
struct Guard {
    NOINLINE ~Guard() { work(2); }
};

int rethrow_in_second(int depth)
{
    Guard guard;
    try {
        return throw_in_third(depth) + work(1);
    } catch (int) {
        work(3);
        throw;
    }
}
#else
int throw_in_third(int depth)
{
    if (!depth)
        throw 1;
    return throw_in_third(depth - 1) + work(4);
}
#endif
