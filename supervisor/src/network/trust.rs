//! What a sandbox trusts whose requests are read: the system's certificates, and the proxy's own.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use hermes_backends::compile::network::BUNDLES;
use hermes_backends::plan::{Content, MountStep, Plan};
use hermes_backends::wire::Certificates;
use hermes_profiles::Caller;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use sha1_checked::{Digest, Sha1};

use crate::error::Error;
use crate::output;

/// Of Java's own store, in which nothing is secret (keytool(1)).
const PASSWORD: &str = "changeit";
/// With these a JKS store begins, `sun.security.provider.JavaKeyStore`.
const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
/// An entry that is a trusted certificate.
const TRUSTED: u32 = 2;
/// Goes into the digest after the password.
const SALT: &[u8] = b"Mighty Aphrodite";

/// The file of certificates that the caller trusts: what `SSL_CERT_FILE` names, else the system's.
///
/// # Errors
/// `SSL_CERT_FILE` names what cannot be read or holds no certificate. Whoever sets it means to trust that, and not what the system does.
pub(super) fn roots(caller: &Caller) -> Result<Option<PathBuf>, Error> {
    let Some(named) = caller.variable("SSL_CERT_FILE").filter(|value| !value.is_empty()).map(|value| caller.cwd.join(value))
    else {
        return Ok(BUNDLES.iter().map(PathBuf::from).find(|path| path.exists()));
    };
    let why = match std::fs::read(&named) {
        Err(e) => e.to_string(),
        Ok(text) if CertificateDer::pem_slice_iter(&text).flatten().next().is_none() => "it holds no certificate".to_owned(),
        Ok(_) => return Ok(Some(named)),
    };
    Err(Error::setup(format!("the certificates of SSL_CERT_FILE, {}, cannot be used: {why}", output::path(&named)))
        .hint("correct SSL_CERT_FILE, or unset it to trust what the system trusts"))
}

/// In the forms that the plan asks for.
pub(super) fn certificates(plan: &Plan, roots: Option<&Path>, own: &str) -> Result<Certificates, Error> {
    let cannot_read =
        |path: &Path, why: &std::io::Error| Error::setup(format!("cannot read certificates in {}: {why}", output::path(path)));
    let read = match roots {
        Some(path) => std::fs::read(path).map_err(|e| cannot_read(path, &e))?,
        None => Vec::new(),
    };
    // Certificates and nothing else: such a file may hold a private key as well.
    let mut pem = Vec::with_capacity(read.len() + own.len());
    for certificate in CertificateDer::pem_slice_iter(&read).flatten() {
        pem.extend_from_slice(b"-----BEGIN CERTIFICATE-----\n");
        for line in base64::engine::general_purpose::STANDARD.encode(&certificate).as_bytes().chunks(64) {
            pem.extend_from_slice(line);
            pem.push(b'\n');
        }
        pem.extend_from_slice(b"-----END CERTIFICATE-----\n");
    }
    pem.extend_from_slice(own.as_bytes());
    let asks = |step: &MountStep| matches!(step, MountStep::File { content: Content::JavaCertificates, .. });
    let java = if plan.mounts.iter().any(asks) { java_store(&pem) } else { Vec::new() };
    Ok(Certificates { pem, java })
}

/// Certificates to trust as a JKS store, which every Java opens without a password: it encrypts nothing, and without a password
/// its digest is not looked at. What is no certificate is left out, as OpenSSL does.
fn java_store(pem: &[u8]) -> Vec<u8> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem).flatten().collect();
    let text = |store: &mut Vec<u8>, text: &str| {
        store.extend((text.len() as u16).to_be_bytes());
        store.extend(text.as_bytes());
    };
    let mut store = Vec::with_capacity(pem.len());
    store.extend(MAGIC.to_be_bytes());
    store.extend(VERSION.to_be_bytes());
    store.extend((certificates.len() as u32).to_be_bytes());
    for (number, certificate) in certificates.iter().enumerate() {
        store.extend(TRUSTED.to_be_bytes());
        text(&mut store, &format!("trusted-{number}"));
        // When it was added, which nobody asks.
        store.extend(0u64.to_be_bytes());
        text(&mut store, "X.509");
        store.extend((certificate.len() as u32).to_be_bytes());
        store.extend_from_slice(certificate);
    }
    let mut digest = Sha1::new();
    digest.update(PASSWORD.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>());
    digest.update(SALT);
    digest.update(&store);
    let digest = digest.finalize();
    store.extend_from_slice(&digest);
    store
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_store_for_java_holds_every_certificate() {
        let pem = |bytes: &[u8]| {
            let text = base64::engine::general_purpose::STANDARD.encode(bytes);
            format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
        };
        let store = java_store(format!("# comment\n{}{}", pem(b"first"), pem(b"second")).as_bytes());
        assert_eq!(store[..12], [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 2]);
        for der in [&b"first"[..], b"second"] {
            assert_eq!(store.windows(der.len()).filter(|part| *part == der).count(), 1);
        }
    }
}
