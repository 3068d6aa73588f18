//! Phrases first, and packet by packet where there is none.

use super::hits::Counting;
use super::kernel::{self, note, take, Exit, Lane, Tables};
use super::phrase::{Phrases, ENDS_IN_TIP, WINDOW};
use super::table::{find, Key};
use super::wire::before_psb;
use crate::stack::ReturnStack;

pub(super) type Run = fn(
    &mut Tables<'_>,
    Option<&mut Phrases>,
    &mut ReturnStack,
    &[u8],
    usize,
    usize,
    &mut Lane,
) -> Exit;

/// As `kernel::run`, with phrases.
pub(super) fn run<const RETURNS: bool, const KEEP: u8>(
    tables: &mut Tables<'_>,
    phrases: Option<&mut Phrases>,
    stack: &mut ReturnStack,
    bytes: &[u8],
    end: usize,
    room: usize,
    lane: &mut Lane,
) -> Exit {
    let Some(phrases) = phrases.filter(|phrases| !phrases.is_empty() && !tables.ret.is_empty())
    else {
        return kernel::run::<RETURNS, KEEP>(tables, stack, bytes, end, room, lane);
    };
    loop {
        if phrases.paused == 0 {
            let follow = follow::<RETURNS, KEEP>;
            if let Some(exit) = follow(tables, phrases, stack, bytes, end, room, lane) {
                return exit;
            }
        }
        let from = lane.at;
        let stop = end.min(from.saturating_add(phrases.paused.max(1)));
        let exit = kernel::run::<RETURNS, KEEP>(tables, stack, bytes, stop, room, lane);
        phrases.paused = phrases.paused.saturating_sub(lane.at - from);
        let goes_on = lane.at >= stop && lane.at < end && tables.log.len() < room;
        if exit != Exit::Leave || !goes_on {
            return exit;
        }
    }
}

/// Takes phrases as long as there are some. None: the next packet is the kernel's.
#[inline(never)]
fn follow<const RETURNS: bool, const KEEP: u8>(
    tables: &mut Tables<'_>,
    phrases: &mut Phrases,
    stack: &mut ReturnStack,
    bytes: &[u8],
    end: usize,
    room: usize,
    lane: &mut Lane,
) -> Option<Exit> {
    let (ret, acts, log) = (&mut *tables.ret, tables.acts, &mut *tables.log);
    let mut hits: Counting<'_> = tables.hits.counting();
    let (mut at, mut base, mut last_ip, mut rest) = (lane.at, lane.base, lane.last_ip, lane.rest);
    let (mut tips, mut tip_bytes, mut found) = (0, 0, 0);
    let outcome = loop {
        let window = bytes.get(at..at + WINDOW);
        let window: Option<&[u8; WINDOW]> = window.and_then(|window| window.try_into().ok());
        let (Some(window), true) = (window, at < end && log.len() < room) else {
            phrases.found(found);
            break None;
        };
        let place = phrases.at(base, window, rest);
        let phrase = &mut phrases.entries[place.slot];
        let after = at + usize::from(phrase.length);
        let is_known = phrase.is(base, &place, last_ip);
        if is_known && after > end {
            phrases.found(found);
            phrases.paused = WINDOW;
            break None;
        }
        if !is_known || before_psb(bytes.get(after..).unwrap_or(&[])) {
            break phrases.missed(&place, found).then_some(Exit::Phrase);
        }
        note::<KEEP>(&mut phrase.hits, log, at, &mut hits);
        phrase.uses = phrase.uses.saturating_add(1);
        base = phrase.next;
        rest = 0;
        at = after;
        if phrase.tips != 0 {
            last_ip = phrase.after;
        }
        tips += u64::from(phrase.tips & !ENDS_IN_TIP);
        tip_bytes += u64::from(phrase.tip_bytes);
        found += 1;
        if !RETURNS || phrase.act == 0 {
            continue;
        }
        let ends_in_tip = phrase.tips & ENDS_IN_TIP != 0;
        let (deed, pushes) = acts.decode(phrase.act);
        take(stack, deed.peak, pushes);
        if !deed.pops {
            continue;
        }
        if ends_in_tip {
            stack.drop_top();
            continue;
        }
        // the RET is in the TNT that the phrase ends with
        rest = deed.rest;
        at -= 1;
        let Some(site) = stack.top_site() else {
            break Some(Exit::NoCall);
        };
        let Some(slot) = find(ret, site.slot(base, 0, ret.len() - 1), base, site) else {
            break Some(Exit::Return(site));
        };
        let step = &mut ret[slot];
        stack.drop_top();
        note::<KEEP>(&mut step.hits, log, at, &mut hits);
        base = step.next;
        at += usize::from(rest == 0);
    };
    hits.end();
    lane.at = at;
    lane.base = base;
    lane.last_ip = last_ip;
    lane.rest = rest;
    lane.tips += tips;
    lane.other_bytes += tip_bytes;
    outcome
}
