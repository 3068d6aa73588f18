//! Columns as lines of text.

use std::io::Write;

/// Names are padded to this many characters.
const NAME_WIDTH: usize = 32;
/// An unknown number, which is printed as `-`.
const UNKNOWN: u64 = u64::MAX;

/// The name of an address; without a text only the offset is printed.
#[derive(Clone, Debug, Default)]
pub struct AddressName {
    pub text: String,
    /// The offset is that in a file, not in a function, and is printed also if it is 0.
    pub is_file: bool,
}

/// A column of a table, with its format.
#[derive(Clone, Debug)]
pub enum TableColumn {
    /// Hexadecimal, on the right of a width.
    Hexadecimal(Vec<u64>, usize),
    /// Decimal, on the right of a width; 2^64-1 is unknown.
    Decimal(Vec<u64>, usize),
    /// Decimal numbers in two's complement, on the right of a width.
    Signed(Vec<u64>, usize),
    /// Decimal with commas between thousands, on the right of a width.
    Commas(Vec<u64>, usize),
    /// Words by their numbers; empty for other numbers.
    Words(Vec<u64>, Vec<String>),
    /// Names by their numbers and offsets from them, on the left of 32 characters.
    Places(Vec<u64>, Vec<u64>, Vec<AddressName>),
}

impl TableColumn {
    /// Returns the number of rows.
    pub fn row_count(&self) -> usize {
        match self {
            TableColumn::Hexadecimal(numbers, _)
            | TableColumn::Decimal(numbers, _)
            | TableColumn::Signed(numbers, _)
            | TableColumn::Commas(numbers, _)
            | TableColumn::Words(numbers, _) => numbers.len(),
            TableColumn::Places(numbers, offsets, _) => numbers.len().min(offsets.len()),
        }
    }

    fn write_cell(&self, row: usize, out: &mut Vec<u8>) {
        // writing to a vector does not fail
        let _ = match self {
            TableColumn::Hexadecimal(numbers, width) => {
                write!(out, "{:width$x}", numbers[row], width = *width)
            }
            TableColumn::Decimal(numbers, width) if numbers[row] == UNKNOWN => {
                write!(out, "{:>width$}", '-', width = *width)
            }
            TableColumn::Decimal(numbers, width) => {
                write!(out, "{:width$}", numbers[row], width = *width)
            }
            TableColumn::Signed(numbers, width) => {
                write!(out, "{:width$}", numbers[row] as i64, width = *width)
            }
            TableColumn::Commas(numbers, width) => {
                write!(
                    out,
                    "{:>width$}",
                    insert_thousands_separators(numbers[row]),
                    width = *width
                )
            }
            TableColumn::Words(numbers, words) => {
                let word = value_at_row(words, numbers[row]).map_or("", String::as_str);
                out.write_all(word.as_bytes())
            }
            TableColumn::Places(numbers, offsets, names) => {
                write_name(value_at_row(names, numbers[row]), offsets[row], out)
            }
        };
    }
}

/// Returns the lines of columns of one length, with a blank between columns and none at the end of a line.
pub fn format_table_lines(columns: &[TableColumn]) -> Vec<u8> {
    let rows = columns
        .iter()
        .map(TableColumn::row_count)
        .min()
        .unwrap_or(0);
    let mut out = Vec::new();
    for row in 0..rows {
        for (index, column) in columns.iter().enumerate() {
            if index > 0 {
                out.push(b' ');
            }
            column.write_cell(row, &mut out);
        }
        while out.last() == Some(&b' ') {
            out.pop();
        }
        out.push(b'\n');
    }
    out
}

fn value_at_row<T>(all: &[T], number: u64) -> Option<&T> {
    usize::try_from(number)
        .ok()
        .and_then(|number| all.get(number))
}

fn write_name(name: Option<&AddressName>, offset: u64, out: &mut Vec<u8>) -> std::io::Result<()> {
    let start = out.len();
    match name.filter(|name| !name.text.is_empty()) {
        None => write!(out, "{offset:#x}")?,
        Some(name) if offset == 0 && !name.is_file => out.write_all(name.text.as_bytes())?,
        Some(name) => write!(out, "{}+{offset:#x}", name.text)?,
    }
    let characters = out[start..].iter().filter(|&&byte| byte & 0xc0 != 0x80);
    let missing = NAME_WIDTH.saturating_sub(characters.count());
    out.resize(out.len() + missing, b' ');
    Ok(())
}

fn insert_thousands_separators(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column_text(column: TableColumn) -> String {
        String::from_utf8(format_table_lines(&[
            column,
            TableColumn::Words(vec![0; 9], vec!["|".into()]),
        ]))
        .unwrap()
    }

    #[test]
    fn number_columns_are_aligned() {
        assert_eq!(
            column_text(TableColumn::Hexadecimal(vec![0x1000, 0], 6)),
            "  1000 |\n     0 |\n"
        );
        assert_eq!(
            column_text(TableColumn::Decimal(vec![7, u64::MAX], 3)),
            "  7 |\n  - |\n"
        );
        assert_eq!(
            column_text(TableColumn::Signed(vec![u64::MAX, 12345], 3)),
            " -1 |\n12345 |\n"
        );
        let grouped = "  0 |\n999 |\n1,000 |\n18,446,744,073,709,551,615 |\n";
        assert_eq!(
            column_text(TableColumn::Commas(vec![0, 999, 1000, u64::MAX], 3)),
            grouped
        );
    }

    #[test]
    fn names_fill_32_characters() {
        let name = |text: &str, is_file| AddressName {
            text: text.into(),
            is_file,
        };
        let names = vec![name("", false), name("mäin", false), name("libc", true)];
        let column = TableColumn::Places(vec![0, 1, 1, 2, 3], vec![0, 0, 16, 0, 5], names);
        let shown = column_text(column);
        let wanted = ["0x0", "mäin", "mäin+0x10", "libc+0x0", "0x5"];
        for (line, wanted) in shown.lines().zip(wanted) {
            assert_eq!(line, format!("{wanted:32} |"));
        }
        assert_eq!(shown.lines().count(), 5);
    }

    #[test]
    fn nothing_ends_with_blanks_and_the_shortest_column_counts() {
        let columns = [
            TableColumn::Decimal(vec![1, 2, 3], 0),
            TableColumn::Words(vec![0, 7], vec!["a".into()]),
        ];
        assert_eq!(format_table_lines(&columns), b"1 a\n2\n");
        assert_eq!(format_table_lines(&[]), b"");
    }
}
