//! Fields and columns of the texts for people.

use std::fmt::Write as _;

use crate::output::clean;

/// A word, a subject and a remark; all safe to print.
pub(crate) type Row = (String, String, String);

/// Widest subject that the remarks are lined up behind.
pub(crate) const WIDEST: usize = 48;

/// One line of a name and a value.
pub(crate) fn field(text: &mut String, name: &str, value: &str) {
    _ = writeln!(text, "{name:<12}{}", clean(value));
}

/// A title and rows in columns; nothing when there are no rows.
pub(crate) fn section(text: &mut String, title: &str, rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    let width = |column: fn(&Row) -> &str| rows.iter().map(|row| column(row).chars().count()).max().unwrap_or(0);
    let (first, second) = (width(|row| &row.0), width(|row| &row.1).min(WIDEST));
    _ = writeln!(text, "\n{title}");
    for (word, subject, remark) in rows {
        let line = format!("  {word:<first$}  {subject:<second$}  {remark}");
        _ = writeln!(text, "{}", line.trim_end());
    }
}

/// Rows in columns; all cells are safe to print. The last column is as wide as it likes.
pub(crate) fn columns<const N: usize>(text: &mut String, rows: &[[String; N]]) {
    let widths: [usize; N] =
        std::array::from_fn(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0).min(WIDEST));
    for row in rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
}

/// How long ago something was, both in milliseconds.
pub(crate) fn age(now: u64, then: u64) -> String {
    let seconds = now.saturating_sub(then) / 1000;
    let units = [(86_400, "day"), (3600, "hour"), (60, "minute")];
    match units.into_iter().find(|(unit, _)| seconds >= *unit) {
        None => "just now".to_owned(),
        Some((unit, name)) if seconds / unit == 1 => format!("1 {name} ago"),
        Some((unit, name)) => format!("{} {name}s ago", seconds / unit),
    }
}

/// A size in the largest fitting unit.
pub(crate) fn bytes(count: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| count >= *unit) {
        Some((unit, name)) if count.is_multiple_of(unit) => format!("{} {name}", count / unit),
        Some((unit, name)) => format!("{:.1} {name}", count as f64 / unit as f64),
        None => format!("{count} bytes"),
    }
}

/// A time given in milliseconds.
pub(crate) fn seconds(milliseconds: u64) -> String {
    format!("{} s", milliseconds as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!([bytes(0), bytes(1023), bytes(1 << 10), bytes(3 << 29)], ["0 bytes", "1023 bytes", "1 KiB", "1.5 GiB"]);
        assert_eq!(seconds(1500), "1.5 s");
    }

    #[test]
    fn ages() {
        let ages = [0, 59, 60, 7199, 7200, 86_400, 2_000_000].map(|seconds| age(10_000_000_000, 10_000_000_000 - seconds * 1000));
        assert_eq!(ages, ["just now", "just now", "1 minute ago", "1 hour ago", "2 hours ago", "1 day ago", "23 days ago"]);
        assert_eq!(age(0, 5000), "just now", "a clock was set back");
    }

    #[test]
    fn any_number_of_columns() {
        let mut text = String::new();
        columns(&mut text, &[["a", "bb", "c"], ["aaa", "b", ""]].map(|row| row.map(str::to_owned)));
        assert_eq!(text, "a    bb  c\naaa  b\n");
    }

    #[test]
    fn columns_are_lined_up_and_end_without_blanks() {
        let row = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        let mut text = String::new();
        section(&mut text, "t", &[row("read", "/u", "why"), row("x", "/long", "")]);
        assert_eq!(text, "\nt\n  read  /u     why\n  x     /long\n");
    }
}
