// For the calls of JavaScript: prints how often each path of its own functions was entered.
"use strict";

const counts = new Map(), path = [];

function enter(name) {
    path.push(name);
    const key = path.join(";");
    counts.set(key, (counts.get(key) || 0) + 1);
}

function leave() {
    path.pop();
}

function leaf(n) { enter("leaf"); const r = n % 7; leave(); return r; }
function middle(n) { enter("middle"); const r = leaf(n) + leaf(n + 1); leave(); return r; }
function outer(n) { enter("outer"); const r = middle(n) + 1; leave(); return r; }
function other(n) { enter("other"); const r = leaf(n); leave(); return r; }
function fibonacci(n) {
    enter("fibonacci");
    const r = n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
    leave();
    return r;
}

function even(n) { enter("even"); const r = n === 0 || odd(n - 1); leave(); return r; }
function odd(n) { enter("odd"); const r = n !== 0 && even(n - 1); leave(); return r; }
function compare(x, y) { enter("compare"); const r = x - y; leave(); return r; }
function add(x) { enter("add"); const r = x + x; leave(); return r; }

function sorter(n) {
    enter("sorter");
    const all = [];
    for (let i = 0; i < 20; i++)
        all.push((i * 7919 + n) % 101);
    all.sort(compare);
    leave();
    return all[0];
}

function thrower(n) {
    enter("thrower");
    if (n === 0)
        throw new Error("thrown");
    const r = thrower(n - 1);
    leave();
    return r;
}

function catcher(n) {
    enter("catcher");
    const depth = path.length;
    let r = 0;
    try {
        r = thrower(n);
    } catch {
        path.length = depth;
        r = leaf(n);
    }
    leave();
    return r;
}

function work(throws) {
    enter("work");
    let sum = 0;
    // enough for V8 to compile the functions several times, and to continue this loop in compiled code
    for (let i = 0; i < 3000; i++)
        sum += outer(i) + other(i);
    for (let i = 0; i < 20; i++)
        sum += fibonacci(8) + even(30) + sorter(i);
    for (let i = 0; i < 2000; i++)
        sum += add(i);
    sum += add("deoptimizes") + add(0.5);
    for (let i = 0; throws && i < 50; i++)
        sum += catcher(5);
    leave();
    return sum;
}

work(process.argv[2] === "throws");
for (const [key, count] of counts)
    console.log(`${key} ${count}`);
