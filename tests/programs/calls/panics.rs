// Panics through frames with destructors, resumed, and caught at several depths of a recursion.
// Each function logs its entry and exit, as the functions of entry_log.h do.

use std::hint::black_box;
use std::io::Write;
use std::panic;

static mut ENTRIES: Vec<[u64; 3]> = Vec::new();
static mut DEPTH: u64 = 0;

struct Logged(u64);

#[inline(always)]
fn log(function: usize) -> Logged {
    unsafe {
        DEPTH += 1;
        ENTRIES.push([function as u64, (1 << 40) - DEPTH, 0]);
    }
    Logged(function as u64)
}

impl Drop for Logged {
    fn drop(&mut self) {
        unsafe {
            DEPTH -= 1;
            ENTRIES.push([self.0, 0, 0]);
        }
    }
}

#[inline(never)]
fn work(count: u32) -> u32 {
    let _logged = log(work as usize);
    (0..count).map(|each| black_box(each) ^ count).sum()
}

struct Guard(u32);

impl Drop for Guard {
    #[inline(never)]
    fn drop(&mut self) {
        work(self.0);
    }
}

#[inline(never)]
fn descend(depth: u32) -> u32 {
    let _logged = log(descend as usize);
    let _guard = Guard(depth + 1);
    if depth == 0 {
        panic!("at the bottom");
    }
    descend(depth - 1) + work(3)
}

#[inline(never)]
fn pass_on(depth: u32) -> u32 {
    let _logged = log(pass_on as usize);
    let caught = panic::catch_unwind(|| descend(depth));
    work(4);
    caught.unwrap_or_else(|payload| panic::resume_unwind(payload))
}

#[inline(never)]
fn catch(depth: u32) -> u32 {
    let _logged = log(catch as usize);
    panic::catch_unwind(|| pass_on(depth)).unwrap_or_else(|_| work(5))
}

#[inline(never)]
fn catch_at_even_depths(depth: u32) -> u32 {
    let _logged = log(catch_at_even_depths as usize);
    if depth == 0 {
        return descend(1);
    }
    match panic::catch_unwind(|| catch_at_even_depths(depth - 1) + work(1)) {
        Ok(sum) => sum,
        Err(payload) if depth % 2 == 1 => panic::resume_unwind(payload),
        Err(_) => work(2) + if depth < 5 { catch(1) } else { 0 },
    }
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    for depth in 0..4 {
        catch(depth);
    }
    catch_at_even_depths(6);
    let mut bytes = Vec::new();
    unsafe {
        let entries = &*std::ptr::addr_of!(ENTRIES);
        entries.iter().flatten().for_each(|word| bytes.extend(word.to_le_bytes()));
    }
    std::io::stdout().write_all(&bytes).unwrap();
}
