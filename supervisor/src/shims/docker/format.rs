//! Templates: only fields that are known, so that nobody takes a wrong answer for a right one.

use crate::changes::moment;
use crate::output::clean;

/// The template with its fields filled in. `\t` and `\n` may be written so, as docker takes them.
pub(super) fn fill(template: &str, field: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (mut filled, mut rest) = (String::new(), template);
    while let Some((before, after)) = rest.split_once("{{") {
        let (inner, after) = after.split_once("}}").ok_or_else(|| format!("the template `{}` is not closed", clean(template)))?;
        let name = inner.trim();
        let value = field(name).ok_or_else(|| format!("the template's `{{{{{}}}}}` is not known", clean(name)))?;
        filled += before;
        filled += &value;
        rest = after;
    }
    filled += rest;
    Ok(filled.replace("\\t", "\t").replace("\\n", "\n"))
}

/// A time as docker writes it, RFC 3339.
pub(super) fn time(milliseconds: u64) -> String {
    let nanoseconds = i64::try_from(milliseconds).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    moment(nanoseconds).replacen(' ', "T", 1).replace(" UTC", &format!(".{:03}000000Z", milliseconds % 1000))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn known_fields_are_filled_in_and_others_refused() {
        let field = |name: &str| (name == ".ID").then(|| "abc".to_owned());
        assert_eq!(fill("{{.ID}}\\t{{ .ID }}|", &field).unwrap(), "abc\tabc|");
        assert_eq!(fill("plain", &field).unwrap(), "plain");
        assert!(fill("{{.Other}}", &field).unwrap_err().contains(".Other"));
        assert!(fill("{{.ID", &field).is_err());
    }

    #[test]
    fn times_as_docker_writes_them() {
        assert_eq!(time(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(time(951_782_400_123), "2000-02-29T00:00:00.123000000Z");
        assert_eq!(time(1_798_761_599_999), "2026-12-31T23:59:59.999000000Z");
    }
}
