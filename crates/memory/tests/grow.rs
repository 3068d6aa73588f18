//! Growth looks whether memory is scarce, and unwinds where it is refused.

use std::alloc::Layout;
use std::collections::VecDeque;

use rtit_memory::{
    caught, copied, filled, gathered, headroom, sort_by_key, Grow, MakeRoom, Refused, Reserves,
};

/// Does `work` while so much of a reserve is in use that memory is scarce, and before.
fn twice<T>(work: impl Fn() -> T) -> [Result<T, Refused>; 2] {
    let before = caught(&work);
    // nobody touches what is mapped
    let reserves = Box::new(Reserves::new(|_| Some(1 << 30)));
    assert!(reserves.are_ready());
    let much = Layout::from_size_align(1 << 18, 8).unwrap();
    let at = reserves.take(much).unwrap();
    let while_scarce = caught(work);
    assert!(reserves.give_back(at, much));
    [before, while_scarce]
}

/// As it is known to all threads, in one test.
#[test]
fn what_grows_looks_first() {
    let full = || vec![1, 2];
    let grown = |grow: fn(&mut Vec<i32>)| {
        twice(|| {
            let mut items = full();
            grow(&mut items);
            items
        })
    };
    let whole = |items: &[i32]| [Ok(items.to_vec()), Err(Refused)];
    assert_eq!(grown(|items| items.put(3)), whole(&[1, 2, 3]));
    assert_eq!(grown(|items| items.room_exactly(1)), whole(&[1, 2]));
    assert_eq!(grown(|items| items.put_all(&[3, 4])), whole(&[1, 2, 3, 4]));
    assert_eq!(grown(|items| items.gather(3..5)), whole(&[1, 2, 3, 4]));
    let odd = |items: &mut Vec<i32>| items.gather((3..6).filter(|item| item % 2 == 1));
    assert_eq!(grown(odd), whole(&[1, 2, 3, 5]));
    assert_eq!(grown(|items| items.fill_to(4, 7)), whole(&[1, 2, 7, 7]));
    assert_eq!(twice(|| filled(3, 7)), whole(&[7; 3]));
    assert_eq!(twice(|| gathered(0..3)), whole(&[0, 1, 2]));
    assert_eq!(twice(|| copied(&[5, 6])), whole(&[5, 6]));
    let sorted = twice(|| {
        let mut items = vec![3, 1, 2];
        sort_by_key(&mut items, |item| *item);
        items
    });
    assert_eq!(sorted, whole(&[1, 2, 3]));
    assert_eq!(twice(|| headroom(1)), [Ok(()), Err(Refused)]);
    assert_eq!(
        twice(|| VecDeque::<u8>::new().room(1)),
        [Ok(()), Err(Refused)]
    );

    // what is there already is no growth
    let there = |work: fn(&mut Vec<i32>)| {
        twice(|| {
            let mut items = Vec::with_capacity(4);
            items.extend([1, 2]);
            work(&mut items);
            items
        })
    };
    let kept = |items: &[i32]| [Ok(items.to_vec()), Ok(items.to_vec())];
    assert_eq!(there(|items| items.put(3)), kept(&[1, 2, 3]));
    assert_eq!(there(|items| items.put_all(&[3, 4])), kept(&[1, 2, 3, 4]));
    assert_eq!(there(|items| items.gather(3..5)), kept(&[1, 2, 3, 4]));
    assert_eq!(there(|items| items.fill_to(4, 7)), kept(&[1, 2, 7, 7]));
    assert_eq!(there(|items| items.fill_to(1, 7)), kept(&[1]));

    // too much is refused at any time
    assert_eq!(caught(|| Vec::<u64>::new().room(1 << 60)), Err(Refused));
    assert_eq!(caught(|| String::new().room(1 << 63)), Err(Refused));
    assert_eq!(caught(|| headroom(1 << 63)), Err(Refused));
    assert_eq!(caught(|| filled(1 << 60, 0u64)).err(), Some(Refused));
    assert_eq!(caught(|| gathered::<u64>(0..1 << 60)).err(), Some(Refused));
}

#[test]
fn panics_go_on() {
    let ended = std::panic::catch_unwind(|| caught(|| std::panic::resume_unwind(Box::new(7))));
    assert_eq!(ended.unwrap_err().downcast_ref(), Some(&7));
}
