//! Where a stream is cut.

use rtit_packet::{find_psb, PSB};

use super::division::Division;
use crate::window::Window;

/// A segment by stream offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// A PSB before the cut, from which on it is decoded; `None`: from the cut on, where the state is known.
    pub lead: Option<usize>,
    pub cut: usize,
    pub until: usize,
}

/// `count` segments, a round, from `position` to the end of the window if that is nearer. All but the first are cut at a PSB
/// and decoded from `lead` PSBs before that on, or fewer where they are rare.
pub(super) fn plan(
    window: Window<'_>,
    position: usize,
    division: &Division,
    count: usize,
    lead: usize,
) -> Vec<Piece> {
    let size = division.segment;
    let mut pieces = vec![Piece {
        lead: None,
        cut: position,
        until: position.saturating_add(size),
    }];
    let mut from = position;
    while pieces.len() < count {
        let target = from.saturating_add(size);
        let Some(cut) = psb(window, target).filter(|cut| cut + PSB.len() < window.limit()) else {
            break;
        };
        from = cut;
        let earliest = cut.saturating_sub(division.lead).max(window.base);
        let before = psbs_before(window, cut, earliest, lead);
        let last = pieces.last_mut();
        let Some((last, before)) = last.zip(before) else {
            continue;
        };
        last.until = cut;
        pieces.push(Piece {
            lead: Some(before),
            cut,
            until: cut.saturating_add(size),
        });
    }
    // no further cut was found
    let more = count - pieces.len();
    if let Some(last) = pieces.last_mut() {
        last.until = last.until.saturating_add(size.saturating_mul(more));
    }
    pieces
}

fn psb(window: Window<'_>, from: usize) -> Option<usize> {
    let at = find_psb(window.bytes, from.checked_sub(window.base)?)?;
    Some(at + window.base)
}

/// The PSB `count` before that at `end`, or the first from `earliest` on.
fn psbs_before(window: Window<'_>, end: usize, earliest: usize, count: usize) -> Option<usize> {
    let mut found = Vec::new();
    let mut from = earliest;
    while let Some(at) = psb(window, from).filter(|&at| at < end) {
        found.push(at);
        from = at + PSB.len();
    }
    found.get(found.len().saturating_sub(count)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_lie_one_behind_the_other() {
        let mut stream = Vec::new();
        for _ in 0..100 {
            stream.extend([0x02, 0x82].repeat(8));
            stream.extend([0x06; 34]);
        }
        let window = Window::whole(&stream);
        let division = Division {
            threads: 2,
            segment: 400,
            lead: 150,
            results: 1,
            changes: 100,
        };
        let pieces = plan(window, 7, &division, 8, 2);
        assert_eq!(pieces.len(), 8);
        for pair in pieces.windows(2) {
            assert_eq!(pair[0].until, pair[1].cut);
            assert_eq!(pair[1].cut % 50, 0);
            assert_eq!(pair[1].lead, Some(pair[1].cut - 100));
        }
        let pieces = plan(window, 3000, &division, 8, 1);
        assert!(pieces.last().is_some_and(|last| last.until >= stream.len()));
    }

    #[test]
    fn no_cut_where_psbs_are_rare() {
        let mut stream = vec![0x06; 1000];
        stream.extend([0x02, 0x82].repeat(8));
        stream.extend([0x06; 1000]);
        let division = Division {
            threads: 2,
            segment: 400,
            lead: 100,
            results: 1,
            changes: 100,
        };
        let pieces = plan(Window::whole(&stream), 0, &division, 8, 1);
        let whole = Piece {
            lead: None,
            cut: 0,
            until: 3200,
        };
        assert_eq!(pieces, [whole]);
    }
}
