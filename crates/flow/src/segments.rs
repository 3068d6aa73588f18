//! One stream by several threads: segments between PSBs, each decoded by itself, and joined in order.
//!
//! From a PSB+ on a decoder knows all that one knows which came from before (RET compression begins anew, too), but for
//! little: results of the clock, how a transaction began. So a segment's decoder begins some PSBs earlier (`plan`) and keeps
//! nothing of what it finds up to its cut. There its state is compared with that of the decoder of the segment before
//! (`Carry`): where they are equal all that follows is what one thread would find. Where they are not, the segment is decoded
//! once more, from the other's state. Thus results and ledger are always those of one thread, and damage costs time alone.
//!
//! A segment with very many losses ends early, and those behind it do not meet it: what is known of them waits in memory, too.
//!
//! Results whose order matters (`ordered`) are gathered by each segment in batches, of which there are so many that they
//! do not take more memory than a caller would hold; sums (`run`) are added up.
//!
//! What steps have counted (module `steps`) stays with the decoder of a thread, whatever the segment. If a segment was
//! decoded in vain, the walker counts once more what it counted, and that is taken off.

mod division;
mod ordered;
mod part;
mod patience;
mod plan;
mod run;
mod spread;
mod sum;

pub use division::Division;
pub use ordered::Ordered;
pub use run::Segments;
pub use sum::Sum;
