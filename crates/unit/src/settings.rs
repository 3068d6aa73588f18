//! What a unit is told once: IA32_RTIT_CTL, clocks, choices that the chapter leaves open, where output ends.

use crate::error::Error;

/// Bits of IA32_RTIT_CTL (Table 33-6).
pub mod ctl {
    pub const CYC_EN: u64 = 1 << 1;
    pub const USER: u64 = 1 << 3;
    pub const PWR_EVT_EN: u64 = 1 << 4;
    pub const FUP_ON_PTW: u64 = 1 << 5;
    pub const MTC_EN: u64 = 1 << 9;
    pub const TSC_EN: u64 = 1 << 10;
    pub const DIS_RETC: u64 = 1 << 11;
    pub const PTW_EN: u64 = 1 << 12;
    pub const BRANCH_EN: u64 = 1 << 13;
    pub const MTC_FREQ: u32 = 14;
    pub const CYC_THRESH: u32 = 19;
    pub const PSB_FREQ: u32 = 24;
    pub const DIS_TNT: u64 = 1 << 55;

    /// What a recording of user mode can set. Packets of PWR_EVT_EN and PTW_EN need events that it does not have.
    pub const SUPPORTED: u64 = CYC_EN
        | USER
        | PWR_EVT_EN
        | FUP_ON_PTW
        | MTC_EN
        | TSC_EN
        | DIS_RETC
        | PTW_EN
        | BRANCH_EN
        | 15 << MTC_FREQ
        | 15 << CYC_THRESH
        | 15 << PSB_FREQ
        | DIS_TNT;
}

/// What a TNT packet holds (section 33.4.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TntForm {
    /// 6 results.
    Short,
    /// 47 results in 8 bytes.
    Long,
    /// 47 results, but a short TNT when at most 6 wait.
    Mixed,
}

impl TntForm {
    /// Results that wait at most.
    pub fn capacity(self) -> u32 {
        match self {
            TntForm::Short => 6,
            TntForm::Long | TntForm::Mixed => 47,
        }
    }
}

/// Which values of IPBytes are used (section 33.4.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpCompression {
    Shortest,
    /// The full IP.
    None,
    /// 48 bits sign extended, or full.
    Sext48Only,
    /// All but 100b.
    Bdw,
}

/// Where the PSB+ of an enable comes (section 33.2.8.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PsbOnEnable {
    BeforePge,
    AfterPge,
}

/// A packet of PSB+.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PsbPart {
    Tsc,
    Pip,
    Cbr,
    ModeTsx,
    ModeExec,
    Fup,
}

/// Choices among the behaviours that the chapter allows; every one gives a legal trace of the same execution.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameters {
    pub tnt_form: TntForm,
    /// Results after which a TNT is sent; 0: only when it is full.
    pub tnt_flush: u32,
    pub ip_compression: IpCompression,
    /// The first IP after a PSB is compressed against zero, or not at all.
    pub compress_after_psb: bool,
    /// 0 to 64 CALLs.
    pub ret_compression_depth: u32,
    /// No MODE.Exec at TIP.PGE when the decoder knows the mode.
    pub modeexec_suppress: bool,
    /// The TIP.PGD before TraceStop shows its target.
    pub tracestop_pgd_target: bool,
    pub psb_on_enable_order: PsbOnEnable,
    /// Bytes from reaching the threshold to the PSB+.
    pub psb_delay: u64,
    pub psb_plus_order: [PsbPart; 6],
    pub psb_counts_itself: bool,
    /// 12 to 64 bits.
    pub cyc_counter_bits: u32,
    /// 2 to 9 bytes.
    pub cyc_max_bytes: u32,
}

impl Default for Parameters {
    fn default() -> Parameters {
        use PsbPart::{Cbr, Fup, ModeExec, ModeTsx, Pip, Tsc};
        Parameters {
            tnt_form: TntForm::Short,
            tnt_flush: 0,
            ip_compression: IpCompression::Shortest,
            compress_after_psb: true,
            ret_compression_depth: 64,
            modeexec_suppress: true,
            tracestop_pgd_target: true,
            psb_on_enable_order: PsbOnEnable::BeforePge,
            psb_delay: 0,
            psb_plus_order: [Tsc, Pip, Cbr, ModeTsx, ModeExec, Fup],
            psb_counts_itself: true,
            cyc_counter_bits: 14,
            cyc_max_bytes: 3,
        }
    }
}

/// How the clocks relate: a core cycle is `cpi`-th of an instruction, the TSC runs at nominally `bus_hz` x
/// `max_non_turbo_ratio`, the core at `bus_hz` x `core_ratio`, the crystal as CPUID.15H says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimeModel {
    pub cpi: u32,
    pub tsc_start: u64,
    pub tsc_adjust: i64,
    pub crystal_hz: u64,
    pub tsc_numerator: u32,
    pub tsc_denominator: u32,
    pub bus_hz: u64,
    pub max_non_turbo_ratio: u8,
    pub core_ratio: u8,
}

impl Default for TimeModel {
    fn default() -> TimeModel {
        TimeModel {
            cpi: 1,
            tsc_start: 1_000_000_000,
            tsc_adjust: 0,
            crystal_hz: 25_000_000,
            tsc_numerator: 80,
            tsc_denominator: 2,
            bus_hz: 100_000_000,
            max_non_turbo_ratio: 10,
            core_ratio: 10,
        }
    }
}

/// Where output ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Nowhere: whoever runs the unit takes the bytes in time.
    Stream,
    /// A region of so many bytes that is written again from its start: the last ones are there.
    Circular(u64),
    /// A region of so many bytes that sets Stopped when it is filled, as a ToPA entry with STOP does.
    Stop(u64),
}

/// All settings of a unit. The defaults are those of `perf record -e intel_pt//u`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// IA32_RTIT_CTL without TraceEn, ADDRn_CFG and the output scheme; see `ctl::SUPPORTED`.
    pub ctl: u64,
    /// CPUID.(14H,0):EBX[1]. Without it there is no PacketByteCnt to keep, and each enable sends PSB+.
    pub psb_cyc: bool,
    pub time: TimeModel,
    pub parameters: Parameters,
    pub output: Output,
}

impl Default for Settings {
    fn default() -> Settings {
        let periods = 3 << ctl::MTC_FREQ | 3 << ctl::PSB_FREQ;
        Settings {
            ctl: ctl::USER | ctl::MTC_EN | ctl::TSC_EN | ctl::BRANCH_EN | periods,
            psb_cyc: true,
            time: TimeModel::default(),
            parameters: Parameters::default(),
            output: Output::Stream,
        }
    }
}

impl Settings {
    /// Whether a unit can work with these.
    ///
    /// # Errors
    /// `Error::Setting` for the first that it cannot.
    pub fn check(&self) -> Result<(), Error> {
        let unsupported = self.ctl & !ctl::SUPPORTED;
        let named = "a value of IA32_RTIT_CTL without TraceEn, ADDRn_CFG, output scheme and what user mode does not have";
        check(
            "ctl",
            format_args!("{unsupported:#x}"),
            unsupported == 0,
            named,
        )?;
        let largest = 1 << 32;
        match self.output {
            Output::Stream => {}
            Output::Circular(size) => between("circular", size, 128, largest)?,
            Output::Stop(size) => between("stop", size, 1, largest)?,
        }
        self.parameters.check()?;
        self.time.check()
    }
}

impl Parameters {
    fn check(&self) -> Result<(), Error> {
        let capacity = self.tnt_form.capacity();
        between("tnt_flush", self.tnt_flush.into(), 0, capacity.into())?;
        let depth = self.ret_compression_depth.into();
        between("ret_compression_depth", depth, 0, 64)?;
        between("psb_delay", self.psb_delay, 0, 1 << 32)?;
        between("cyc_max_bytes", self.cyc_max_bytes.into(), 2, 9)?;
        let held = 7 * u64::from(self.cyc_max_bytes) - 2;
        between(
            "cyc_counter_bits",
            self.cyc_counter_bits.into(),
            12,
            held.min(64),
        )?;
        let order = &self.psb_plus_order;
        let once = (0..6).all(|at| !order[at + 1..].contains(&order[at]));
        check(
            "psb_plus_order",
            format_args!("{order:?}"),
            once,
            "each packet once",
        )
    }
}

impl TimeModel {
    fn check(&self) -> Result<(), Error> {
        let limit = u32::MAX.into();
        between("cpi", self.cpi.into(), 1, limit)?;
        between("tsc_start", self.tsc_start, 0, 1 << 57)?;
        between("tsc_denominator", self.tsc_denominator.into(), 1, limit)?;
        // A TMA has 9 bits for the ticks since a crystal clock.
        let most = (u64::from(self.tsc_denominator) << 9).min(limit);
        between("tsc_numerator", self.tsc_numerator.into(), 1, most)?;
        between(
            "max_non_turbo_ratio",
            self.max_non_turbo_ratio.into(),
            1,
            255,
        )?;
        between("core_ratio", self.core_ratio.into(), 1, 255)?;
        let crystal = u128::from(self.crystal_hz) * u128::from(self.tsc_numerator);
        let bus = u128::from(self.bus_hz) * u128::from(self.max_non_turbo_ratio);
        let nominal = bus * u128::from(self.tsc_denominator);
        // The frequency of the bus is nominal: real processors differ by up to 0.5 %.
        let agree = crystal.abs_diff(nominal) * 100 <= nominal && bus > 0;
        check(
            "crystal_hz",
            format_args!("{}", self.crystal_hz),
            agree,
            "such that crystal and bus give one TSC",
        )
    }
}

fn between(name: &'static str, value: u64, low: u64, high: u64) -> Result<(), Error> {
    let fits = (low..=high).contains(&value);
    check(
        name,
        format_args!("{value}"),
        fits,
        &format!("{low} to {high}"),
    )
}

fn check(
    name: &'static str,
    value: std::fmt::Arguments<'_>,
    fits: bool,
    expected: &str,
) -> Result<(), Error> {
    if fits {
        return Ok(());
    }
    Err(Error::Setting {
        name,
        value: value.to_string(),
        expected: expected.to_string(),
    })
}
