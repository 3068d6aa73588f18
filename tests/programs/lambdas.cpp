/* For coverage: class templates with members that are templates, lambdas, and nested inlined calls.
   INLINE is `static inline`, and may ask for inlining. */
#include <cstdio>

template <class T, int N>
class Ring {
public:
    void push(T item) {
        items[next % N] = item;
        next++;
    }
    template <class F>
    int count(F accepts) const {
        int found = 0;
        for (int i = 0; i < N && i < next; i++)
            if (accepts(items[i]))
                found++;
        return found;
    }

private:
    T items[N];
    int next = 0;
};

INLINE int halve(int x) {
    if (x % 2)
        x--;
    return x / 2;
}

INLINE int quarter(int x) {
    int half = halve(x);
    return halve(half);
}

int main() {
    Ring<int, 4> few;
    Ring<long, 16> many;
    for (int i = 0; i < 10; i++) {
        few.push(i);
        many.push(i * i);
    }
    int sum = few.count([](int item) {
        return item > 7;
    });
    sum += many.count([](long item) {
        return item > 7;
    });
    sum += many.count([&](long item) { return item == sum; });
    for (int i = 0; i < 5; i++)
        sum += quarter(sum + i);
    sum += halve(sum);
    std::printf("%d\n", sum);
    return 0;
}
