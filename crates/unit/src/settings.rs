//! The settings of a unit: IA32_RTIT_CTL, clocks, the choices that the chapter leaves open, and the end of the output.
//! `Settings::set_by_name` takes them by name, for command lines and other languages.

use std::str::FromStr;

use crate::error::Error;

/// Bits of IA32_RTIT_CTL (Table 33-6).
pub mod ctl {
    pub const CYC_EN: u64 = 1 << 1;
    pub const OS: u64 = 1 << 2;
    pub const USER: u64 = 1 << 3;
    pub const PWR_EVT_EN: u64 = 1 << 4;
    pub const FUP_ON_PTW: u64 = 1 << 5;
    pub const CR3_FILTER: u64 = 1 << 7;
    pub const MTC_EN: u64 = 1 << 9;
    pub const TSC_EN: u64 = 1 << 10;
    pub const DIS_RETC: u64 = 1 << 11;
    pub const PTW_EN: u64 = 1 << 12;
    pub const BRANCH_EN: u64 = 1 << 13;
    pub const MTC_FREQ: u32 = 14;
    pub const CYC_THRESH: u32 = 19;
    pub const PSB_FREQ: u32 = 24;
    pub const EVENT_EN: u64 = 1 << 31;
    pub const DIS_TNT: u64 = 1 << 55;

    /// The bits that a recording can set. The packets of PTW_EN need events that it does not have; OS, CR3_FILTER,
    /// EVENT_EN and PWR_EVT_EN have an effect where a whole system is recorded.
    pub const SUPPORTED: u64 = CYC_EN
        | OS
        | USER
        | CR3_FILTER
        | EVENT_EN
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

/// The TNT packets that the unit emits (section 33.4.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TntForm {
    /// 6 bits in a byte.
    Short,
    /// 47 bits in 8 bytes.
    Long,
    /// 47 bits; a short TNT if at most 6 are pending.
    Mixed,
}

impl TntForm {
    /// Returns the maximum number of pending bits.
    pub fn max_pending_bits(self) -> u32 {
        match self {
            TntForm::Short => 6,
            TntForm::Long | TntForm::Mixed => 47,
        }
    }
}

/// The values of IPBytes in use (section 33.4.2.2).
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

/// The position of the PSB+ of an enable (section 33.2.8.3).
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

/// Choices among the behaviours that the chapter allows. Every combination gives a legal trace of the same execution.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LegalChoices {
    pub tnt_form: TntForm,
    /// TNT bits after which a TNT is sent; 0: only when it is full.
    pub tnt_flush: u32,
    pub ip_compression: IpCompression,
    /// The first IP after a PSB is compressed against zero; otherwise not at all.
    pub compress_after_psb: bool,
    /// 0 to 64 CALLs.
    pub ret_compression_depth: u32,
    /// TIP.PGE sends no MODE.Exec if the decoder knows the mode.
    pub modeexec_suppress: bool,
    /// The TIP.PGD before TraceStop carries its target.
    pub tracestop_pgd_target: bool,
    pub psb_on_enable_order: PsbOnEnable,
    /// Bytes between the threshold and the PSB+.
    pub psb_delay: u64,
    pub psb_plus_order: [PsbPart; 6],
    pub psb_counts_itself: bool,
    /// 12 to 64 bits.
    pub cyc_counter_bits: u32,
    /// 2 to 9 bytes.
    pub cyc_max_bytes: u32,
}

impl Default for LegalChoices {
    fn default() -> LegalChoices {
        use PsbPart::{Cbr, Fup, ModeExec, ModeTsx, Pip, Tsc};
        LegalChoices {
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

/// The ratios of the clocks. An instruction takes `cpi` core cycles. The TSC runs at nominally `bus_hz` x
/// `max_non_turbo_ratio`, the core at `bus_hz` x `core_ratio`, the crystal as in CPUID.15H.
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

/// The end of the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputRegion {
    /// None: the caller takes the bytes in time.
    Stream,
    /// A region of so many bytes that is overwritten from its start. It holds the last bytes.
    Circular(u64),
    /// A region of so many bytes that sets Stopped when it is full, as a ToPA entry with STOP does.
    Stop(u64),
}

/// All settings of a unit. The defaults are those of `perf record -e intel_pt//u`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// IA32_RTIT_CTL without TraceEn, ADDRn_CFG and the output scheme; see `ctl::SUPPORTED`.
    pub ctl: u64,
    /// IA32_RTIT_CR3_MATCH.
    pub cr3_match: u64,
    /// CPUID.(14H,0):EBX[1]. Without it there is no PacketByteCnt to keep, and each enable sends PSB+.
    pub psb_cyc: bool,
    pub time: TimeModel,
    pub parameters: LegalChoices,
    pub output: OutputRegion,
}

impl Default for Settings {
    fn default() -> Settings {
        let periods = 3 << ctl::MTC_FREQ | 3 << ctl::PSB_FREQ;
        Settings {
            ctl: ctl::USER | ctl::MTC_EN | ctl::TSC_EN | ctl::BRANCH_EN | periods,
            cr3_match: 0,
            psb_cyc: true,
            time: TimeModel::default(),
            parameters: LegalChoices::default(),
            output: OutputRegion::Stream,
        }
    }
}

impl Settings {
    /// Checks the settings.
    ///
    /// # Errors `Error::Setting` for the first value that a unit cannot use.
    pub fn check_settings(&self) -> Result<(), Error> {
        let unsupported = self.ctl & !ctl::SUPPORTED;
        let expected =
            "a value of IA32_RTIT_CTL without TraceEn, ADDRn_CFG, output scheme and bits that a \
                        recording does not have";
        check_setting(
            "ctl",
            &format!("{unsupported:#x}"),
            unsupported == 0,
            expected,
        )?;
        let largest = 1 << 32;
        match self.output {
            OutputRegion::Stream => {}
            OutputRegion::Circular(size) => check_range("circular", size, 128, largest)?,
            OutputRegion::Stop(size) => check_range("stop", size, 1, largest)?,
        }
        self.parameters.check_choices()?;
        self.time.check_time_model()
    }
}

impl LegalChoices {
    fn check_choices(&self) -> Result<(), Error> {
        check_range(
            "tnt_flush",
            self.tnt_flush,
            0,
            self.tnt_form.max_pending_bits().into(),
        )?;
        check_range("ret_compression_depth", self.ret_compression_depth, 0, 64)?;
        check_range("psb_delay", self.psb_delay, 0, 1 << 32)?;
        check_range("cyc_max_bytes", self.cyc_max_bytes, 2, 9)?;
        let capacity = 7 * u64::from(self.cyc_max_bytes) - 2;
        check_range(
            "cyc_counter_bits",
            self.cyc_counter_bits,
            12,
            capacity.min(64),
        )?;
        let order = &self.psb_plus_order;
        let once = (0..6).all(|at| !order[at + 1..].contains(&order[at]));
        check_setting(
            "psb_plus_order",
            &format!("{order:?}"),
            once,
            "each packet once",
        )
    }
}

impl TimeModel {
    fn check_time_model(&self) -> Result<(), Error> {
        let limit = u32::MAX.into();
        check_range("cpi", self.cpi, 1, limit)?;
        check_range("tsc_start", self.tsc_start, 0, 1 << 57)?;
        check_range("tsc_denominator", self.tsc_denominator, 1, limit)?;
        // TMA has 9 bits for ticks since a crystal clock.
        let most = (u64::from(self.tsc_denominator) << 9).min(limit);
        check_range("tsc_numerator", self.tsc_numerator, 1, most)?;
        check_range("max_non_turbo_ratio", self.max_non_turbo_ratio, 1, 255)?;
        check_range("core_ratio", self.core_ratio, 1, 255)?;
        let crystal = u128::from(self.crystal_hz) * u128::from(self.tsc_numerator);
        let bus = u128::from(self.bus_hz) * u128::from(self.max_non_turbo_ratio);
        let nominal = bus * u128::from(self.tsc_denominator);
        // The bus frequency is nominal: real processors differ by up to 0.5 %.
        let agree = crystal.abs_diff(nominal) * 100 <= nominal && bus > 0;
        let expected = "such that crystal and bus give one TSC";
        check_setting("crystal_hz", &self.crystal_hz.to_string(), agree, expected)
    }
}

fn check_range(name: &str, value: impl Into<u64>, low: u64, high: u64) -> Result<(), Error> {
    let value = value.into();
    let fits = (low..=high).contains(&value);
    check_setting(name, &value.to_string(), fits, &format!("{low} to {high}"))
}

fn check_setting(name: &str, value: &str, fits: bool, expected: &str) -> Result<(), Error> {
    if fits {
        return Ok(());
    }
    let [name, value, expected] = [name, value, expected].map(String::from);
    Err(Error::Setting {
        name,
        value,
        expected,
    })
}

impl Settings {
    /// Sets one setting by the name of its field; `circular` and `stop` take the size of a region in bytes.
    ///
    /// Numbers are decimal or 0x hexadecimal; switches are 1, 0, on, off, true or false, in any case; items of a list
    /// are separated by colons.
    ///
    /// # Errors `Error::UnknownSetting`, and `Error::Setting` for a text that is no value of the setting.
    /// `Settings::check_settings` checks limits.
    pub fn set_by_name(&mut self, name: &str, text: &str) -> Result<(), Error> {
        let (time, parameters) = (&mut self.time, &mut self.parameters);
        match name {
            "ctl" => self.ctl = parse_number(name, text)?,
            "cr3_match" => self.cr3_match = parse_number(name, text)?,
            "psb_cyc" => self.psb_cyc = parse_bool(name, text)?,
            "circular" => self.output = OutputRegion::Circular(parse_number(name, text)?),
            "stop" => self.output = OutputRegion::Stop(parse_number(name, text)?),
            "cpi" => time.cpi = parse_number(name, text)?,
            "tsc_start" => time.tsc_start = parse_number(name, text)?,
            "tsc_adjust" => time.tsc_adjust = parse_signed(name, text)?,
            "crystal_hz" => time.crystal_hz = parse_number(name, text)?,
            "tsc_numerator" => time.tsc_numerator = parse_number(name, text)?,
            "tsc_denominator" => time.tsc_denominator = parse_number(name, text)?,
            "bus_hz" => time.bus_hz = parse_number(name, text)?,
            "max_non_turbo_ratio" => {
                time.max_non_turbo_ratio = parse_number(name, text)?;
            }
            "core_ratio" => time.core_ratio = parse_number(name, text)?,
            "tnt_form" => parameters.tnt_form = parse_choice(name, text, TNT_FORMS)?,
            "tnt_flush" => parameters.tnt_flush = parse_number(name, text)?,
            "ip_compression" => {
                parameters.ip_compression = parse_choice(name, text, IP_COMPRESSIONS)?;
            }
            "compress_after_psb" => {
                parameters.compress_after_psb = parse_bool(name, text)?;
            }
            "ret_compression_depth" => {
                parameters.ret_compression_depth = parse_number(name, text)?;
            }
            "modeexec_suppress" => {
                parameters.modeexec_suppress = parse_bool(name, text)?;
            }
            "tracestop_pgd_ip" => {
                let choices = &[("target", true), ("suppressed", false)];
                parameters.tracestop_pgd_target = parse_choice(name, text, choices)?;
            }
            "psb_on_enable_order" => {
                parameters.psb_on_enable_order = parse_choice(name, text, PSB_ON_ENABLE_ORDERS)?;
            }
            "psb_delay" => parameters.psb_delay = parse_number(name, text)?,
            "psb_plus_order" => parameters.psb_plus_order = parse_psb_plus_order(name, text)?,
            "psb_counts_itself" => {
                parameters.psb_counts_itself = parse_bool(name, text)?;
            }
            "cyc_counter_bits" => parameters.cyc_counter_bits = parse_number(name, text)?,
            "cyc_max_bytes" => parameters.cyc_max_bytes = parse_number(name, text)?,
            _ => return Err(Error::UnknownSetting(name.to_string())),
        }
        Ok(())
    }
}

type Choices<T> = &'static [(&'static str, T)];

const TNT_FORMS: Choices<TntForm> = &[
    ("short", TntForm::Short),
    ("long", TntForm::Long),
    ("mixed", TntForm::Mixed),
];
const IP_COMPRESSIONS: Choices<IpCompression> = &[
    ("shortest", IpCompression::Shortest),
    ("none", IpCompression::None),
    ("sext48_only", IpCompression::Sext48Only),
    ("bdw", IpCompression::Bdw),
];
const PSB_ON_ENABLE_ORDERS: Choices<PsbOnEnable> = &[
    ("before_pge", PsbOnEnable::BeforePge),
    ("after_pge", PsbOnEnable::AfterPge),
];
const PSB_PARTS: Choices<PsbPart> = &[
    ("TSC", PsbPart::Tsc),
    ("PIP", PsbPart::Pip),
    ("CBR", PsbPart::Cbr),
    ("MODE.TSX", PsbPart::ModeTsx),
    ("MODE.Exec", PsbPart::ModeExec),
    ("FUP", PsbPart::Fup),
];
const SWITCHES: Choices<bool> = &[
    ("1", true),
    ("0", false),
    ("on", true),
    ("off", false),
    ("true", true),
    ("false", false),
];

fn invalid_setting(name: &str, text: &str, expected: String) -> Error {
    let (name, value) = (name.to_string(), format!("{text:?}"));
    Error::Setting {
        name,
        value,
        expected,
    }
}

fn parse_number<T: TryFrom<u64>>(name: &str, text: &str) -> Result<T, Error> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => u64::from_str(text).ok(),
    };
    let expected = || format!("a number of at most {} bits", 8 * std::mem::size_of::<T>());
    value
        .and_then(|value| T::try_from(value).ok())
        .ok_or_else(|| invalid_setting(name, text, expected()))
}

fn parse_signed(name: &str, text: &str) -> Result<i64, Error> {
    i64::from_str(text)
        .map_err(|_| invalid_setting(name, text, "a number of 64 bits with sign".into()))
}

fn parse_bool(name: &str, text: &str) -> Result<bool, Error> {
    parse_choice(name, &text.to_ascii_lowercase(), SWITCHES)
}

fn parse_choice<T: Copy>(name: &str, text: &str, choices: &[(&str, T)]) -> Result<T, Error> {
    let found = choices.iter().find(|(choice, _)| *choice == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(choice, _)| *choice).collect();
        invalid_setting(name, text, format!("one of {}", names.join(", ")))
    })
}

fn parse_psb_plus_order(name: &str, text: &str) -> Result<[PsbPart; 6], Error> {
    let items: Result<Vec<_>, Error> = text
        .split(':')
        .map(|item| parse_choice(name, item, PSB_PARTS))
        .collect();
    let invalid = |_| invalid_setting(name, text, "six packets".into());
    items?.try_into().map_err(invalid)
}
