//! Where to: what `ssh` takes as a destination, and nothing that it would take as something else.

use std::fmt;
use std::str::FromStr;

/// `[user@]host`, `ssh://[user@]host[:port]`, or a name of the user's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination(String);

impl Destination {
    /// As `ssh` takes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Destination {
    type Err = &'static str;

    /// Names reach `ProxyCommand` and `Match exec` by `%h` and `%r`, which a shell reads: so only letters, digits and what
    /// addresses need pass (CVE-2023-51385), and no part begins with a dash (CVE-2017-1000117 and the like).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-+@:%[]/".contains(c);
        if text.is_empty() {
            return Err("it is empty");
        }
        let rest = text.strip_prefix("ssh://").unwrap_or(text);
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        if [text, rest, host].iter().any(|part| part.starts_with('-')) {
            return Err("`ssh` would take it as an option");
        }
        if !text.chars().all(plain) {
            return Err("it holds a character that names of hosts and users do not have");
        }
        if host.trim_matches(['[', ']', '/', ':']).is_empty() || rest.contains('/') && rest == text {
            return Err("it names no host");
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_hosts() {
        for good in ["h", "u@h.example.test", "ssh://u@h:22", "u@2001:db8::1", "ssh://[::1]:2222", "my-alias", "fe80::1%eth0"] {
            assert_eq!(good.parse::<Destination>().map(|d| d.0), Ok(good.to_owned()));
        }
        for bad in [
            "",
            "-oProxyCommand=x",
            "-h",
            "u@-h",
            "ssh://-h",
            "ssh://u@-oX",
            "-u@h",
            "h x",
            "h;x",
            "$(x)@h",
            "`x`",
            "h\n",
            "a/b",
            "@",
            "ssh://",
            "h'x",
            "\u{e9}",
        ] {
            assert!(bad.parse::<Destination>().is_err(), "{bad}");
        }
    }
}
