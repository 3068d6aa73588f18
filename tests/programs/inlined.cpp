/* Lambdas, members and templates, inlined into one another, and functions that inlined ones call. */
struct Sum {
    long value = 0;
    __attribute__((always_inline)) void add(long number) { value += number * 3; }
};

__attribute__((noipa)) static long square(long x)
{
    return x * x;
}

template <typename Function>
static inline __attribute__((always_inline)) void repeat(int count, Function function)
{
    for (int i = 0; i < count; i++)
        function(i);
}

__attribute__((noipa)) static long work(int depth)
{
    Sum sum;
    repeat(10, [&](int i) __attribute__((always_inline)) { sum.add(square(i) ^ depth); });
    if (depth)
        sum.add(work(depth - 1));
    return sum.value;
}

int main()
{
    long all = 0;
    repeat(5, [&](int i) __attribute__((always_inline)) { all ^= work(i); });
    return all & 1;
}
