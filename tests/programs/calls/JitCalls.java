// For the calls of Java: prints how often each path of its own functions was entered.
import java.util.TreeMap;

public class JitCalls {
    static final TreeMap<String, Integer> counts = new TreeMap<>();
    static final StringBuilder path = new StringBuilder();

    static void enter(String name) {
        path.append(';').append(name);
        counts.merge(path.toString(), 1, Integer::sum);
    }

    static void leave() {
        path.setLength(path.lastIndexOf(";"));
    }

    static int leaf(int n) { enter("leaf"); int r = n % 7; leave(); return r; }
    static int middle(int n) { enter("middle"); int r = leaf(n) + leaf(n + 1); leave(); return r; }
    static int outer(int n) { enter("outer"); int r = middle(n) + 1; leave(); return r; }
    static int other(int n) { enter("other"); int r = leaf(n); leave(); return r; }

    static int fibonacci(int n) {
        enter("fibonacci");
        int r = n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
        leave();
        return r;
    }

    static boolean even(int n) { enter("even"); boolean r = n == 0 || odd(n - 1); leave(); return r; }
    static boolean odd(int n) { enter("odd"); boolean r = n != 0 && even(n - 1); leave(); return r; }

    static int thrower(int n) {
        enter("thrower");
        if (n == 0)
            throw new IllegalStateException("thrown");
        int r = thrower(n - 1);
        leave();
        return r;
    }

    static int catcher(int n) {
        enter("catcher");
        int depth = path.length(), r = 0;
        try {
            r = thrower(n);
        } catch (IllegalStateException thrown) {
            path.setLength(depth);
            r = leaf(n);
        }
        leave();
        return r;
    }

    static int work() {
        enter("work");
        int sum = 0;
        for (int i = 0; i < 100; i++)
            sum += outer(i) + other(i);
        for (int i = 0; i < 5; i++)
            sum += fibonacci(8) + (even(30) ? 1 : 0) + catcher(5);
        leave();
        return sum;
    }

    public static void main(String[] words) {
        work();
        counts.forEach((key, count) -> System.out.println(key.substring(1) + " " + count));
    }
}
