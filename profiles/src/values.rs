//! Scalars with a grammar of their own: sizes, durations, shares, hosts, patterns of names. Errors say what is expected.

use std::net::{IpAddr, Ipv6Addr};

use crate::layer::{KernelKey, Limit, NetworkMode, RouteEntry};
use crate::route::RouteRules;

/// Ports of a destination that names none.
pub(crate) const DEFAULT_PORTS: [u16; 2] = [443, 80];

/// Keys of `[limits]` and names for `--limit`.
pub(crate) const LIMITS: [&str; 9] =
    ["memory", "processes", "scratch", "shm", "open-files", "file-size", "cpu", "timeout", "grace"];

/// Spellings of `network.mode` and `--net`; the last two are aliases.
pub(crate) const NETWORK_MODES: [&str; 7] = ["off", "routes", "ask", "audit", "host", "none", "proxy"];

pub(crate) fn network_mode(text: &str) -> Option<NetworkMode> {
    match text {
        "off" | "none" => Some(NetworkMode::Off),
        "routes" | "proxy" => Some(NetworkMode::Routes),
        "ask" => Some(NetworkMode::Ask),
        "audit" => Some(NetworkMode::Audit),
        "host" => Some(NetworkMode::Host),
        _ => None,
    }
}

/// Keys of `[kernel]`.
pub(crate) const KERNEL: [(&str, KernelKey); 3] =
    [("nested-sandbox", KernelKey::NestedSandbox), ("strict", KernelKey::Strict), ("unix-datagram", KernelKey::UnixDatagram)];

/// One of [`LIMITS`] with its value as text. The outer `None` is an unknown name.
pub(crate) fn limit(name: &str, text: &str) -> Option<Result<Limit, String>> {
    let lifted = matches!(text, "none" | "unlimited");
    let optional = |parse: fn(&str) -> Result<u64, String>| if lifted { Ok(None) } else { parse(text).map(Some) };
    Some(match name {
        "memory" => match text.strip_suffix('%') {
            Some(percent) => match percent.trim().parse() {
                Ok(percent @ 1..=100) => Ok(Limit::MemoryPercent(percent)),
                _ => Err("expected a share from 1% to 100%".into()),
            },
            None => optional(size).map(Limit::Memory),
        },
        "processes" => optional(count).map(Limit::Processes),
        "scratch" => optional(size).map(Limit::Scratch),
        "shm" => optional(size).map(Limit::Shm),
        "open-files" => optional(count).map(Limit::OpenFiles),
        "file-size" => optional(size).map(Limit::FileSize),
        "cpu" if lifted => Ok(Limit::Cpu(None)),
        "cpu" => cpu(text).map(|share| Limit::Cpu(Some(share))),
        "timeout" => optional(positive_duration).map(Limit::Timeout),
        "grace" => duration(text).map(Limit::Grace),
        _ => return None,
    })
}

/// `number` and `unit` of `text`; the number may have decimals when `text` has a unit.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok().filter(|n: &f64| n.is_finite())?;
    Some((number, unit.trim()))
}

/// The whole number `number * factor`, if it is one that fits.
fn scaled(number: f64, factor: u64) -> Option<u64> {
    let value = number * factor as f64;
    // 2^53: beyond it f64 no longer counts by ones, and no machine has as many bytes.
    (value >= 0.0 && value <= (1_u64 << 53) as f64).then_some(value as u64)
}

fn count(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "expected a whole number above 0, or \"none\"".into())
}

/// Bytes: `8GiB`, `500MB`, `64M` (binary, as in `ulimit`), or a plain number.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let parse = || {
        let (number, unit) = number_and_unit(text)?;
        let factor = match unit {
            "" | "B" => 1,
            "K" | "k" | "KiB" => 1 << 10,
            "M" | "MiB" => 1 << 20,
            "G" | "GiB" => 1 << 30,
            "T" | "TiB" => 1 << 40,
            "kB" | "KB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            _ => return None,
        };
        scaled(number, factor).filter(|bytes| *bytes > 0)
    };
    parse().ok_or_else(|| "expected a size such as \"8GiB\" or \"512MiB\", or \"none\"".into())
}

/// Milliseconds: `500ms`, `2s`, `10m`, `1h`, `1d`; a plain number is seconds.
///
/// # Errors
/// What is expected instead.
pub fn duration(text: &str) -> Result<u64, String> {
    let parse = || {
        let (number, unit) = number_and_unit(text)?;
        let factor = match unit {
            "ms" => 1,
            "" | "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        scaled(number, factor)
    };
    parse().ok_or_else(|| "expected a duration such as \"500ms\", \"2s\" or \"10m\"".into())
}

fn positive_duration(text: &str) -> Result<u64, String> {
    duration(text)?.checked_sub(1).map(|ms| ms + 1).ok_or_else(|| "a timeout of 0 stops everything; use \"none\"".into())
}

/// Hundredths of a processor: `150%`, or processors: `1.5`.
fn cpu(text: &str) -> Result<u32, String> {
    let parse = || {
        let (number, unit) = number_and_unit(text)?;
        let factor = match unit {
            "%" => 1,
            "" => 100,
            _ => return None,
        };
        scaled(number, factor).and_then(|share| u32::try_from(share).ok()).filter(|share| *share > 0)
    };
    parse().ok_or_else(|| "expected processors such as \"1.5\" or a share such as \"150%\", or \"none\"".into())
}

/// `HOST[:PORT]` as in `--allow-host`.
pub(crate) fn destination(text: &str) -> Result<RouteEntry, String> {
    if text.contains(['/', '@']) {
        return host(text).map(|host| RouteEntry { host, ports: Vec::new(), rules: RouteRules::default() });
    }
    let (name, port) = match text.rsplit_once(':') {
        // A bare IPv6 address has colons of its own.
        Some(_) if text.parse::<Ipv6Addr>().is_ok() => (text, None),
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    let ports = match port {
        Some(port) => vec![port.parse().ok().filter(|p| *p > 0).ok_or("expected HOST or HOST:PORT with a port from 1 to 65535")?],
        None => DEFAULT_PORTS.to_vec(),
    };
    Ok(RouteEntry { host: host(name)?, ports, rules: RouteRules::default() })
}

/// The canonical form of a host: lower case, ASCII, no trailing dot, `*.` only in front, addresses in one spelling.
pub(crate) fn host(text: &str) -> Result<String, String> {
    if text.contains(['/', '@']) {
        return Err("expected a host without scheme, path or user".into());
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(address.to_string());
    }
    let ascii = if text.is_ascii() { text.to_owned() } else { international(text)? };
    let lower = ascii.to_ascii_lowercase();
    let lower = lower.strip_suffix('.').unwrap_or(&lower);
    let name = lower.strip_prefix("*.").unwrap_or(lower);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.is_empty() || name == "*" {
        return Err(
            "a wildcard needs a domain below which it counts, as in \"*.example.test\"; for all hosts use the mode \"host\""
                .into(),
        );
    }
    if name.len() > 253 || !name.split('.').all(label) {
        return Err("expected a host name, an address, or \"*.\" and a domain".into());
    }
    // inet_aton reads 0x7f.1, 017700000001 and 2130706433 as addresses; nobody means such a thing.
    let last = name.rsplit('.').next().unwrap_or(name);
    if last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x") {
        return Err("expected an address in its usual spelling".into());
    }
    Ok(lower.to_string())
}

/// The ASCII form of an international name (UTS 46, as browsers do it).
fn international(text: &str) -> Result<String, String> {
    let (wildcard, name) = match text.strip_prefix("*.") {
        Some(name) => ("*.", name),
        None => ("", text),
    };
    let ascii = idna::domain_to_ascii(name).map_err(|_| "not a name that international domain names allow")?;
    Ok(format!("{wildcard}{ascii}"))
}

/// Is this a name of a variable, or a pattern of one with a single `*`?
pub(crate) fn variable_pattern(text: &str) -> Result<(), String> {
    let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'=' | b'?' | b'[' | b']' | b'{' | b'}');
    if text.is_empty() || !text.bytes().all(plain) || text.matches('*').count() > 1 {
        return Err("expected the name of a variable, or a pattern with one \"*\" such as \"LC_*\"".into());
    }
    if text == "*" {
        return Err("\"*\" would allow every variable; name them or a prefix".into());
    }
    Ok(())
}

/// Can this be the name of an image?
pub(crate) fn image(text: &str) -> Result<(), String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:/@".contains(&b);
    match text.bytes().all(plain) && text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        true => Ok(()),
        false => Err("expected the name of an image, e.g. \"debian:12\"".into()),
    }
}

/// Can this be the name of a variable?
pub(crate) fn variable_name(text: &str) -> Result<(), String> {
    if text.is_empty() || text.bytes().any(|b| b == b'=' || b == 0 || b == b'\n') {
        return Err("expected the name of a variable".into());
    }
    Ok(())
}
