//! What the recorder asked for: the settings in its folder, and what it left in the environment.

use std::ffi::{c_int, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rtit_unit::Settings;

use crate::shared::environment;
use crate::shared::maps::Recorder;
use crate::shared::ranges::Filter;
use crate::shared::window::Window;
use crate::thread::path::Truth;
use crate::thread::state::Legacy;

/// Of `Config::ahead`: as many as there is room for, if two threads can run at a time.
const AUTO: usize = usize::MAX;

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) folder: PathBuf,
    pub(crate) program: Vec<u8>,
    pub(crate) comm: Vec<u8>,
    /// The open file that the program is in, where that has no name.
    pub(crate) held: Option<c_int>,
    pub(crate) legacy: Legacy,
    pub(crate) settings: Settings,
    /// As in `thread::state::Wanted`.
    pub(crate) truth: Truth,
    pub(crate) snapshot: bool,
    pub(crate) joined: u32,
    pub(crate) filters: Vec<Filter>,
    pub(crate) recorder: Recorder,
    pub(crate) window: Window,
    /// How many blocks the program runs ahead of who follows its path, in a chunk of `shared::ring`: 0 if it does not.
    pub(crate) ahead: usize,
}

impl Config {
    /// What the recorder left in its folder; a sentence if it cannot be used.
    pub(crate) fn load() -> Result<Config, String> {
        let given = environment::given()
            .ok_or("this plugin is for `rtit record`, which starts QEMU with it")?;
        let folder = PathBuf::from(OsStr::from_bytes(&given.folder));
        let path = folder.join("settings");
        let text =
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut config = Config {
            folder,
            program: given.program.clone(),
            comm: given.comm.clone(),
            held: given.held,
            legacy: given.legacy(),
            settings: Settings::default(),
            truth: Truth::None,
            filters: Vec::new(),
            recorder: Recorder::default(),
            snapshot: false,
            joined: 1,
            window: Window::default(),
            ahead: AUTO,
        };
        for line in text.lines() {
            let (name, value) = line
                .split_once('=')
                .ok_or_else(|| format!("settings: no value: {line}"))?;
            config.apply(name, value)?;
        }
        // Their edges and their steps are looked for at each block as it runs.
        let whole = !config.window.used() && matches!(config.truth, Truth::None | Truth::Blocks);
        if !whole || (config.ahead == AUTO && one_at_a_time()) {
            config.ahead = 0;
        }
        config.settings.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    /// No trace is made: blocks are counted.
    pub(crate) fn counts(&self) -> bool {
        self.truth == Truth::Counts
    }

    /// Not all that runs is traced.
    pub(crate) fn partial(&self) -> bool {
        !self.filters.is_empty() || self.window.used()
    }

    /// See `SharedClock::tick`.
    pub(crate) fn tick(&self) -> u64 {
        let time = &self.settings.time;
        let per_instruction = u64::from(time.max_non_turbo_ratio) * u64::from(time.cpi);
        u64::from(time.core_ratio).div_ceil(per_instruction)
    }

    fn apply(&mut self, name: &str, value: &str) -> Result<(), String> {
        if name == "truth" {
            self.truth = match value {
                "none" => Truth::None,
                "blocks" => Truth::Blocks,
                "instructions" => Truth::Instructions,
                "counts" => Truth::Counts,
                _ => {
                    return Err(format!(
                        "truth is none, blocks, instructions or counts, not {value}"
                    ))
                }
            };
            return Ok(());
        }
        match name {
            "joined" => {
                self.joined = value
                    .parse()
                    .map_err(|_| format!("joined is a number of instructions, not {value}"))?;
            }
            "ahead" => {
                self.ahead = match value {
                    "auto" => AUTO,
                    _ => value
                        .parse()
                        .map_err(|_| format!("ahead is auto or a number of blocks, not {value}"))?,
                }
            }
            "snapshot" => self.snapshot = value == "1",
            "began" => {
                self.recorder.began = value
                    .parse()
                    .map_err(|_| format!("began is a number of nanoseconds, not {value}"))?;
            }
            "view" => self.recorder.view = value.to_string(),
            "filter" => self.filters.push(Filter::parse(value)?),
            "start" => self.window.set(false, value)?,
            "stop" => self.window.set(true, value)?,
            _ => self
                .settings
                .set(name, value)
                .map_err(|error| error.to_string())?,
        }
        Ok(())
    }
}

/// Only one thread can run at a time.
fn one_at_a_time() -> bool {
    std::thread::available_parallelism().map_or(true, |count| count.get() == 1)
}
