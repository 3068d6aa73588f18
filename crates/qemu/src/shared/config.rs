//! The settings of the recording: a file in the recorder's folder, and variables of the environment.

use std::ffi::{c_int, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rtit_unit::Settings;

use crate::shared::guest_environment;
use crate::shared::reported_code::RecorderView;
use crate::shared::trace_selection::AddressFilter;
use crate::shared::trace_selection::RecordingWindow;
use crate::thread::executed_path::TruthSource;
use crate::thread::thread_state::InheritedState;

/// `ring_blocks`: the largest chunks, if two threads can run at a time.
const AUTO: usize = usize::MAX;

#[derive(Debug)]
pub(crate) struct RecordingConfig {
    pub(crate) folder: PathBuf,
    pub(crate) program: Vec<u8>,
    pub(crate) comm: Vec<u8>,
    /// The descriptor of the program's file, if that file has no name.
    pub(crate) program_fd: Option<c_int>,
    pub(crate) inherited: InheritedState,
    pub(crate) settings: Settings,
    /// The source of the executed path.
    pub(crate) truth: TruthSource,
    pub(crate) snapshot: bool,
    pub(crate) min_run: u32,
    pub(crate) filters: Vec<AddressFilter>,
    pub(crate) recorder: RecorderView,
    pub(crate) window: RecordingWindow,
    /// Entries of a chunk of `shared::block_ring`; 0: the program follows each block at once.
    pub(crate) ring_blocks: usize,
}

impl RecordingConfig {
    /// Reads the settings; fails with a sentence for the user.
    pub(crate) fn load() -> Result<RecordingConfig, String> {
        let given = guest_environment::recorder_variables()
            .ok_or("this plugin is for `rtit record`, which starts QEMU with it")?;
        let folder = PathBuf::from(OsStr::from_bytes(&given.folder));
        let path = folder.join("settings");
        let text =
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut config = RecordingConfig {
            folder,
            program: given.program.clone(),
            comm: given.comm.clone(),
            program_fd: given.program_fd,
            inherited: given.inherited(),
            settings: Settings::default(),
            truth: TruthSource::None,
            filters: Vec::new(),
            recorder: RecorderView::default(),
            snapshot: false,
            min_run: 1,
            window: RecordingWindow::default(),
            ring_blocks: AUTO,
        };
        for line in text.lines() {
            let (name, value) = line
                .split_once('=')
                .ok_or_else(|| format!("settings: no value: {line}"))?;
            config.apply(name, value)?;
        }
        // Window edges and instruction callbacks need each block to be followed as it runs.
        let whole = !config.window.is_used()
            && matches!(config.truth, TruthSource::None | TruthSource::Blocks);
        if !whole || (config.ring_blocks == AUTO && has_one_cpu()) {
            config.ring_blocks = 0;
        }
        config.settings.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    /// Returns whether blocks are counted and no trace is made.
    pub(crate) fn only_counts(&self) -> bool {
        self.truth == TruthSource::Counts
    }

    /// Returns whether some code is not traced.
    pub(crate) fn is_partial(&self) -> bool {
        !self.filters.is_empty() || self.window.is_used()
    }

    /// See `SharedClock::tsc_tick`.
    pub(crate) fn tsc_tick(&self) -> u64 {
        let time = &self.settings.time;
        let per_instruction = u64::from(time.max_non_turbo_ratio) * u64::from(time.cpi);
        u64::from(time.core_ratio).div_ceil(per_instruction)
    }

    fn apply(&mut self, name: &str, value: &str) -> Result<(), String> {
        if name == "truth" {
            self.truth = match value {
                "none" => TruthSource::None,
                "blocks" => TruthSource::Blocks,
                "instructions" => TruthSource::Instructions,
                "counts" => TruthSource::Counts,
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
                self.min_run = value
                    .parse()
                    .map_err(|_| format!("joined is a number of instructions, not {value}"))?;
            }
            "ahead" => {
                self.ring_blocks = match value {
                    "auto" => AUTO,
                    _ => value
                        .parse()
                        .map_err(|_| format!("ahead is auto or a number of blocks, not {value}"))?,
                }
            }
            "snapshot" => self.snapshot = value == "1",
            "began" => {
                self.recorder.started_at = value
                    .parse()
                    .map_err(|_| format!("began is a number of nanoseconds, not {value}"))?;
            }
            "view" => self.recorder.view = value.to_string(),
            "filter" => self.filters.push(AddressFilter::parse(value)?),
            "start" => self.window.set_edge(false, value)?,
            "stop" => self.window.set_edge(true, value)?,
            _ => self
                .settings
                .set(name, value)
                .map_err(|error| error.to_string())?,
        }
        Ok(())
    }
}

/// Returns whether only one thread can run at a time.
fn has_one_cpu() -> bool {
    std::thread::available_parallelism().map_or(true, |count| count.get() == 1)
}
