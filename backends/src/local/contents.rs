//! What stands in the files that are made inside.

use std::borrow::Cow;
use std::path::Path;

use crate::plan::Content;
use crate::wire::Certificates;

/// The bytes of a file that is made inside. What stands at `target` is still the host's.
pub fn bytes<'s>(target: &Path, content: &'s Content, certificates: &'s Certificates) -> Cow<'s, [u8]> {
    match content {
        Content::Text(text) => text.as_bytes().into(),
        Content::Hosts => {
            let own = nix::unistd::gethostname().unwrap_or_default();
            format!("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 {}\n", own.to_string_lossy())
                .into_bytes()
                .into()
        }
        Content::NameServices => name_services(&std::fs::read(target).unwrap_or_default()).into(),
        Content::Certificates => certificates.pem.as_slice().into(),
        Content::JavaCertificates => certificates.java.as_slice().into(),
    }
}

/// An nsswitch.conf(5) by which hosts are found in /etc/hosts and by DNS, and all else as by `host`.
fn name_services(host: &[u8]) -> Vec<u8> {
    let database = |line: &[u8]| {
        line.trim_ascii_start().strip_prefix(b"hosts").is_some_and(|rest| rest.trim_ascii_start().starts_with(b":"))
    };
    let mut text = b"hosts: files dns\n".to_vec();
    for line in host.split_inclusive(|byte| *byte == b'\n').filter(|line| !database(line)) {
        text.extend_from_slice(line);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::name_services;

    #[test]
    fn hosts_are_found_in_files_and_by_dns_and_all_else_as_on_the_host() {
        let host = b"# hosts: of old\npasswd: files systemd\n  hosts : mdns4_minimal [NOTFOUND=return] resolve\nhosts:\tfiles\nhosts_too: x";
        let inside = "hosts: files dns\n# hosts: of old\npasswd: files systemd\nhosts_too: x";
        assert_eq!(String::from_utf8_lossy(&name_services(host)), inside);
        assert_eq!(name_services(b""), b"hosts: files dns\n");
    }
}
