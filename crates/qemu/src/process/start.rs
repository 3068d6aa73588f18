//! The process begins: the recorder gets to know it.

use crate::interface::api::Api;
use crate::process::blocks::follow_block;
use crate::process::exec::privilege;
use crate::process::{fork, lifeline};
use crate::shared::clock::SharedClock;
use crate::shared::config::Config;
use crate::shared::link::{Kind, Link, Message};
use crate::shared::ring;
use crate::shared::state::{ids, Shared};
use crate::shared::tally::Tallies;
use crate::shared::threads::FIRST;

/// Connects to the recorder and tells of the program.
pub(crate) fn start(api: Api, mut config: Config) -> Result<&'static Shared, String> {
    let link =
        Link::connect(&config.folder).map_err(|error| format!("no recorder answers: {error}"))?;
    lifeline::hold(&config.folder);
    let clock = SharedClock::open(&config.folder.join("clock"), config.tick())
        .map_err(|error| format!("clock: {error}"))?;
    let (pid, tid) = ids();
    if config.ahead > 0 && !ring::prepare(config.ahead, follow_block) {
        config.ahead = 0;
    }
    let shared = Shared::begin(api, config, link, clock)?;
    if shared.config.counts() {
        shared.with(|locked| locked.tallies = Some(Tallies::begin(&shared.link, pid)));
        FIRST.prepare();
    }
    let now = shared.clock.latest() + shared.clock.tick;
    shared.clock.publish(now);
    for (kind, blob) in [
        (Kind::Exec, &shared.config.program),
        (Kind::Comm, &shared.config.comm),
    ] {
        let mut message = Message::new(kind, tid, now);
        message.ip = pid.into();
        message.flags = 1;
        shared.send(message, blob);
    }
    if let Some(warning) = privilege::warning(&shared.config.program) {
        shared.send(Message::new(Kind::Warning, tid, now), warning.as_bytes());
    }
    fork::watch();
    Ok(shared)
}
