//! The example of a fuzzing loop finds what it looks for.

#[path = "../examples/fuzzing_loop.rs"]
#[allow(dead_code)] // its `main`
mod fuzzing_loop;

#[test]
fn the_fuzzing_loop() {
    let (input, runs) = fuzzing_loop::fuzz(100_000).expect("edges lead to the input");
    assert_eq!(input, b"PT!");
    // not by chance: one in 2^24 inputs is right
    assert!(runs < 50_000, "{runs}");
}
