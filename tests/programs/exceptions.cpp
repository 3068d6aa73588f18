// C++ exceptions: thrown through frames with destructors, caught, rethrown, of two types.
#include <cstdio>

struct Counted {
    static int alive;
    Counted() { alive++; }
    ~Counted() { alive--; }
};
int Counted::alive = 0;

[[gnu::noinline]] static int deep(int level) {
    Counted here;
    if (level == 0) throw 7;
    return deep(level - 1) + 1;
}

[[gnu::noinline]] static int middle(int level) {
    Counted here;
    try {
        return deep(level);
    } catch (int value) {
        if (level > 2) throw "deeper";
        throw;
    }
}

int main() {
    int numbers = 0, texts = 0;
    for (int level = 1; level <= 3; level += 2) {
        try {
            middle(level);
        } catch (int value) {
            numbers += value;
        } catch (const char *) {
            texts++;
        }
    }
    std::printf("numbers %d texts %d alive %d\n", numbers, texts, Counted::alive);
    return 0;
}
