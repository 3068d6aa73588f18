//! Divides a stretch of a stream into segments, cut at PSBs.

use rtit_packet::{find_psb, PSB};

use super::parallel_config::ParallelConfig;
use crate::stream_window::StreamWindow;

/// A segment, in stream offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StreamSegment {
    /// The PSB before the cut at which its decoder starts. `None`: it starts at the cut, with a known state.
    pub lead_in: Option<usize>,
    pub cut: usize,
    pub until: usize,
}

/// Returns the segments of a round, `count` at most, from `position` on. All but the first are cut at a PSB, and their
/// decoders start `lead_in_psbs` PSBs before that, or fewer where PSBs are rare.
pub(super) fn plan_round(
    window: StreamWindow<'_>,
    position: usize,
    config: &ParallelConfig,
    count: usize,
    lead_in_psbs: usize,
) -> Vec<StreamSegment> {
    let size = config.segment_bytes;
    let mut segments = vec![StreamSegment {
        lead_in: None,
        cut: position,
        until: position.saturating_add(size),
    }];
    let mut from = position;
    while segments.len() < count {
        let target = from.saturating_add(size);
        let Some(cut) =
            find_psb_from(window, target).filter(|cut| cut + PSB.len() < window.limit())
        else {
            break;
        };
        from = cut;
        let earliest = cut.saturating_sub(config.max_lead_in).max(window.base);
        let lead_in = psbs_before(window, cut, earliest, lead_in_psbs);
        let last = segments.last_mut();
        let Some((last, lead_in)) = last.zip(lead_in) else {
            continue;
        };
        last.until = cut;
        segments.push(StreamSegment {
            lead_in: Some(lead_in),
            cut,
            until: cut.saturating_add(size),
        });
    }
    // The last segment covers what could not be cut.
    let missing = count - segments.len();
    if let Some(last) = segments.last_mut() {
        last.until = last.until.saturating_add(size.saturating_mul(missing));
    }
    segments
}

fn find_psb_from(window: StreamWindow<'_>, from: usize) -> Option<usize> {
    let at = find_psb(window.bytes, from.checked_sub(window.base)?)?;
    Some(at + window.base)
}

/// Returns the PSB `count` before the one at `end`, or the first after `earliest`.
fn psbs_before(
    window: StreamWindow<'_>,
    end: usize,
    earliest: usize,
    count: usize,
) -> Option<usize> {
    let mut found = Vec::new();
    let mut from = earliest;
    while let Some(at) = find_psb_from(window, from).filter(|&at| at < end) {
        found.push(at);
        from = at + PSB.len();
    }
    found.get(found.len().saturating_sub(count)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_contiguous_and_cut_at_psbs() {
        let mut stream = Vec::new();
        for _ in 0..100 {
            stream.extend([0x02, 0x82].repeat(8));
            stream.extend([0x06; 34]);
        }
        let window = StreamWindow::whole(&stream);
        let config = ParallelConfig {
            threads: 2,
            segment_bytes: 400,
            max_lead_in: 150,
            max_result_bytes: 1,
            max_ledger_entries: 100,
        };
        let segments = plan_round(window, 7, &config, 8, 2);
        assert_eq!(segments.len(), 8);
        for pair in segments.windows(2) {
            assert_eq!(pair[0].until, pair[1].cut);
            assert_eq!(pair[1].cut % 50, 0);
            assert_eq!(pair[1].lead_in, Some(pair[1].cut - 100));
        }
        let segments = plan_round(window, 3000, &config, 8, 1);
        assert!(segments
            .last()
            .is_some_and(|last| last.until >= stream.len()));
    }

    #[test]
    fn stream_with_rare_psbs_is_not_cut() {
        let mut stream = vec![0x06; 1000];
        stream.extend([0x02, 0x82].repeat(8));
        stream.extend([0x06; 1000]);
        let config = ParallelConfig {
            threads: 2,
            segment_bytes: 400,
            max_lead_in: 100,
            max_result_bytes: 1,
            max_ledger_entries: 100,
        };
        let segments = plan_round(StreamWindow::whole(&stream), 0, &config, 8, 1);
        let whole = StreamSegment {
            lead_in: None,
            cut: 0,
            until: 3200,
        };
        assert_eq!(segments, [whole]);
    }
}
