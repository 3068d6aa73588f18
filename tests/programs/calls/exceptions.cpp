/* C++ exceptions: through frames with cleanups, rethrown, caught at several depths of a recursion. */
#include "entry_log.h"

static volatile int sum;

NOINLINE static int work(int count)
{
    for (int i = 0; i < count; i++)
        sum += i ^ count;
    return sum;
}

struct Guard {
    NOINLINE Guard() { work(1); }
    NOINLINE ~Guard() { work(2); }
};

NOINLINE static int descend(int depth)
{
    Guard guard;
    if (!depth)
        throw depth;
    return descend(depth - 1) + work(3);
}

NOINLINE static int rethrow(int depth)
{
    try {
        return descend(depth);
    } catch (int) {
        work(4);
        throw;
    }
}

NOINLINE static int catch_all(int depth)
{
    try {
        return rethrow(depth);
    } catch (int) {
        return work(5);
    }
}

NOINLINE static int catch_at_even_depths(int depth)
{
    if (!depth)
        throw 1;
    try {
        return catch_at_even_depths(depth - 1) + work(1);
    } catch (int value) {
        if (depth % 2)
            throw value + 1;
        return work(2) + (depth < 7 ? catch_all(1) : 0);
    }
}

UNLOGGED int main()
{
    for (int depth = 0; depth < 5; depth++)
        catch_all(depth);
    catch_at_even_depths(7);
    write_log();
}
