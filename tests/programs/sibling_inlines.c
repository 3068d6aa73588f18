/* Inlined functions in blocks of different depths: none of them is inside another. */
#define INLINE static inline __attribute__((always_inline))

INLINE int first(int x) { return x * 3 + 1; }
INLINE int second(int x) { return x * 5 + 7; }
INLINE int third(int x) { return x * 7 + 9; }

__attribute__((noipa)) static int work(int number)
{
    volatile int out = number;
    {
        int before = out;
        out = first(before);
    }
    for (int i = 0; i < 3; i++) {
        int before = second(out + i);
        out = before;
    }
    {
        int before = out;
        out = third(before);
    }
    return out;
}

int main(int argc, char **argv)
{
    (void)argv;
    return work(argc) == 99;
}
