// A library of shared_main.
int scale(int x) {
    if (x % 3 == 0) return 2 * x;
    return x + 1;
}

int deeper(int *there, int count) {
    if (count == 0) return *there;
    return deeper(there, count - 1) + 1;
}
