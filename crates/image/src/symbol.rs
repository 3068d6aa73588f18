//! A name of code.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Binding {
    Global = b'g',
    Weak = b'w',
    Local = b'l',
    /// Not in a symbol table: a stub of a procedure linkage table.
    Plt = b'p',
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Symbol {
    /// Virtual address in the file's own numbering (before relocation).
    pub value: u64,
    /// Bytes; 0 if the file does not say.
    pub size: u64,
    pub name: String,
    pub binding: Binding,
}
