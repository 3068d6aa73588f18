// One of two libraries that look alike from outside.
int of_the_library(int times) {
    int sum = WHICH;
    for (int i = 0; i < times; i++)
#if WHICH == 1
        sum += i & 1 ? i : 2;
#else
        sum = (sum ^ i) & 4 ? sum + 3 : sum * 2;
#endif
    return sum;
}
