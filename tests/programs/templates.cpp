/* For coverage: instances of a template, constructors, destructors, and an inlined function.
   INLINE is `static inline`, and may ask for inlining. */
#include <vector>
#include <string>
#include <cstdio>

template <class T>
T largest(const std::vector<T> &all) {
    T best = all[0];
    for (unsigned i = 1; i < all.size(); i++) {
        if (all[i] > best)
            best = all[i];
    }
    return best;
}

struct Base {
    int value;
    Base(int given) : value(given) {
        if (given > 2)
            value = 2;
    }
    virtual ~Base() {
        value = 0;
    }
};

struct Derived : Base {
    Derived(int given)
        : Base(given + 1) {
        value += 1;
    }
};

INLINE int clamp(int x) {
    if (x < 0)
        return 0;
    return x > 10 ? 10 : x;
}

int main() {
    std::vector<int> numbers{3, 9, 4, 12, -5};
    std::vector<double> reals{1.5, 0.5, 2.5};
    int sum = largest(numbers);
    sum += (int)largest(reals);
    for (int x : numbers)
        sum += clamp(x);
    for (int i = 0; i < 3; i++) {
        Derived derived(i);
        Base base(i);
        sum += derived.value + base.value;
    }
    sum += clamp(sum);
    std::printf("%d\n", sum);
    return 0;
}
