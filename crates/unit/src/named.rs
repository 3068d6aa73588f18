//! Settings by name and text, for a command line and for other languages.

use std::str::FromStr;

use crate::error::Error;
use crate::settings::{IpCompression, Output, PsbOnEnable, PsbPart, Settings, TntForm};

impl Settings {
    /// Set one setting by the name of its field; `circular` and `stop` take a region's size in bytes.
    ///
    /// Numbers are decimal or 0x hexadecimal, switches 1, 0, on, off, true or false, in any case; a list has colons
    /// between its items.
    ///
    /// # Errors
    /// `Error::UnknownSetting`, and `Error::Setting` for a text that is no value of it. `Settings::check` looks at
    /// ranges.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), Error> {
        let (time, parameters) = (&mut self.time, &mut self.parameters);
        match name {
            "ctl" => self.ctl = number("ctl", text)?,
            "psb_cyc" => self.psb_cyc = switch("psb_cyc", text)?,
            "circular" => self.output = Output::Circular(number("circular", text)?),
            "stop" => self.output = Output::Stop(number("stop", text)?),
            "cpi" => time.cpi = number("cpi", text)?,
            "tsc_start" => time.tsc_start = number("tsc_start", text)?,
            "tsc_adjust" => time.tsc_adjust = signed("tsc_adjust", text)?,
            "crystal_hz" => time.crystal_hz = number("crystal_hz", text)?,
            "tsc_numerator" => time.tsc_numerator = number("tsc_numerator", text)?,
            "tsc_denominator" => time.tsc_denominator = number("tsc_denominator", text)?,
            "bus_hz" => time.bus_hz = number("bus_hz", text)?,
            "max_non_turbo_ratio" => {
                time.max_non_turbo_ratio = number("max_non_turbo_ratio", text)?;
            }
            "core_ratio" => time.core_ratio = number("core_ratio", text)?,
            "tnt_form" => parameters.tnt_form = choice("tnt_form", text, TNT_FORMS)?,
            "tnt_flush" => parameters.tnt_flush = number("tnt_flush", text)?,
            "ip_compression" => {
                parameters.ip_compression = choice("ip_compression", text, IP_COMPRESSIONS)?;
            }
            "compress_after_psb" => {
                parameters.compress_after_psb = switch("compress_after_psb", text)?;
            }
            "ret_compression_depth" => {
                parameters.ret_compression_depth = number("ret_compression_depth", text)?;
            }
            "modeexec_suppress" => {
                parameters.modeexec_suppress = switch("modeexec_suppress", text)?;
            }
            "tracestop_pgd_ip" => {
                let choices = &[("target", true), ("suppressed", false)];
                parameters.tracestop_pgd_target = choice("tracestop_pgd_ip", text, choices)?;
            }
            "psb_on_enable_order" => {
                parameters.psb_on_enable_order = choice("psb_on_enable_order", text, ORDERS)?;
            }
            "psb_delay" => parameters.psb_delay = number("psb_delay", text)?,
            "psb_plus_order" => parameters.psb_plus_order = order(text)?,
            "psb_counts_itself" => {
                parameters.psb_counts_itself = switch("psb_counts_itself", text)?;
            }
            "cyc_counter_bits" => parameters.cyc_counter_bits = number("cyc_counter_bits", text)?,
            "cyc_max_bytes" => parameters.cyc_max_bytes = number("cyc_max_bytes", text)?,
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
const ORDERS: Choices<PsbOnEnable> = &[
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

fn wrong(name: &'static str, text: &str, expected: String) -> Error {
    Error::Setting {
        name,
        value: format!("{text:?}"),
        expected,
    }
}

fn number<T: TryFrom<u64>>(name: &'static str, text: &str) -> Result<T, Error> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => u64::from_str(text).ok(),
    };
    let expected = || format!("a number of at most {} bits", 8 * std::mem::size_of::<T>());
    value
        .and_then(|value| T::try_from(value).ok())
        .ok_or_else(|| wrong(name, text, expected()))
}

fn signed(name: &'static str, text: &str) -> Result<i64, Error> {
    i64::from_str(text).map_err(|_| wrong(name, text, "a number of 64 bits with sign".into()))
}

fn switch(name: &'static str, text: &str) -> Result<bool, Error> {
    choice(name, &text.to_ascii_lowercase(), SWITCHES)
}

fn choice<T: Copy>(name: &'static str, text: &str, choices: &[(&str, T)]) -> Result<T, Error> {
    let found = choices.iter().find(|(choice, _)| *choice == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(choice, _)| *choice).collect();
        wrong(name, text, format!("one of {}", names.join(", ")))
    })
}

fn order(text: &str) -> Result<[PsbPart; 6], Error> {
    let items: Result<Vec<_>, Error> = text
        .split(':')
        .map(|item| choice("psb_plus_order", item, PSB_PARTS))
        .collect();
    let wrong = |_| wrong("psb_plus_order", text, "six packets".into());
    items?.try_into().map_err(wrong)
}
