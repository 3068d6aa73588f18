//! Demangled names.

use std::fmt::{self, Write};

use cpp_demangle::DemangleOptions;

/// Bytes of a name, mangled or not; longer ones stay as they are, as a few bytes can stand for megabytes.
const MAX_NAME: usize = 4096;

/// Returns the demangled form of a Rust or C++ symbol name (without the C++ parameter list); other
/// names unchanged. A suffix from `@` on, such as `@plt` or a version, stays.
pub fn demangle(name: &str) -> String {
    let (own, rest) = name.split_at(name.find('@').unwrap_or(name.len()));
    match demangle_bounded(own) {
        Some(shown) => shown + rest,
        None => name.to_owned(),
    }
}

fn demangle_bounded(name: &str) -> Option<String> {
    if name.len() > MAX_NAME {
        return None;
    }
    let mut out = BoundedString(String::new());
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        write!(out, "{rust:#}").ok()?;
    } else if name.starts_with("_Z") {
        let symbol = cpp_demangle::Symbol::new(name).ok()?;
        let options = DemangleOptions::new().no_params().no_return_type();
        symbol.structured_demangle(&mut out, &options).ok()?;
    } else {
        return None;
    }
    Some(out.0)
}

/// A string that refuses to grow beyond `MAX_NAME`.
struct BoundedString(String);

impl Write for BoundedString {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_NAME {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::demangle;

    #[test]
    fn rust_and_cpp_names_are_demangled_and_plain_names_kept() {
        assert_eq!(demangle("main"), "main");
        assert_eq!(demangle("_ZN3foo3barEv"), "foo::bar");
        assert_eq!(
            demangle("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"),
            "core::fmt::Write::write_fmt"
        );
        assert_eq!(demangle("_Zbad"), "_Zbad");
        assert_eq!(demangle("_ZN3foo3barEv@plt"), "foo::bar@plt");
        assert_eq!(
            demangle("_ZNSo3putEc@@GLIBCXX_3.4"),
            "std::ostream::put@@GLIBCXX_3.4"
        );
        assert_eq!(demangle("memcpy@plt"), "memcpy@plt");
        assert_eq!(demangle("@plt"), "@plt");
    }
}
