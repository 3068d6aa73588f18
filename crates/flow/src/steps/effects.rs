//! What passages do to the return stack.

use super::how::How;
use super::path::STACK;
use super::visit::Visits;
use crate::code::Code;
use crate::stack::{ReturnStack, NO_SITE};

/// Of one passage.
struct Effect {
    /// The call sites that it takes off, the topmost first; `NO_SITE`: any.
    pops: Vec<u32>,
    /// Those that it leaves on top.
    pushes: Vec<u32>,
    /// How many more are on the stack than before it, at most.
    peak: u8,
}

/// By the number of the passage, found when it is first asked for.
#[derive(Default)]
pub(super) struct Effects {
    /// `None`: nobody asked. `Some(None)`: it is too deep.
    all: Vec<Option<Option<Effect>>>,
    /// What they take, in words.
    words: usize,
}

impl Effects {
    pub fn clear(&mut self) {
        *self = Effects::default();
    }

    pub fn words(&self) -> usize {
        self.words
    }

    /// Does to the stack what a passage of these steps does. False: it cannot be taken with this stack, and nothing is
    /// done.
    pub fn apply(
        &mut self,
        passage: usize,
        steps: &[u32],
        visits: &Visits,
        code: &Code,
        stack: &mut ReturnStack,
    ) -> bool {
        if passage >= self.all.len() {
            self.all.resize_with(passage + 1, || None);
        }
        let Some(known) = self.all.get_mut(passage) else {
            return false;
        };
        let words = &mut self.words;
        let effect = known.get_or_insert_with(|| {
            let effect = Effect::of(steps, visits, code);
            *words += 16 + effect.as_ref().map_or(0, Effect::len);
            effect
        });
        let Some(effect) = effect else {
            return false;
        };
        if !stack.has_on_top(&effect.pops, effect.peak) {
            return false;
        }
        stack.make_room(effect.peak);
        effect.pops.iter().for_each(|_| stack.drop_top());
        effect.pushes.iter().for_each(|&site| stack.push_site(site));
        true
    }
}

impl Effect {
    /// None: at some time more calls of its own are open than the stack holds.
    fn of(steps: &[u32], visits: &Visits, code: &Code) -> Option<Effect> {
        let (mut pops, mut pushes, mut peak) = (Vec::new(), Vec::new(), 0);
        for &step in steps {
            for (node, how) in visits.of(step) {
                let (first, calls) = code.calls(code.node(node));
                pushes.extend((first..).take(calls.len()));
                if pushes.len() > STACK || pops.len() > STACK {
                    return None;
                }
                peak = peak.max(pushes.len().saturating_sub(pops.len()));
                let site = match how {
                    How::Returned(site) => site,
                    How::TipReturn(_) => NO_SITE,
                    _ => continue,
                };
                if pushes.pop().is_none() {
                    pops.push(site);
                }
            }
        }
        Some(Effect {
            pops,
            pushes,
            peak: peak as u8,
        })
    }

    fn len(&self) -> usize {
        self.pops.len() + self.pushes.len()
    }
}
