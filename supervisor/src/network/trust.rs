//! What a sandbox trusts whose requests are read: the system's certificates, and the proxy's own.

use std::path::{Path, PathBuf};

use hermes_backends::plan::{Content, MountStep, Plan};
use hermes_backends::wire::Certificates;
use hermes_profiles::Caller;
use p12_keystore::{Certificate, KeyStore, KeyStoreEntry};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::error::Error;
use crate::output;

/// Where systems keep the certificates that they trust, PEM.
const ROOTS: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Of Java's own store, in which nothing is secret (keytool(1)).
const PASSWORD: &str = "changeit";
/// Rounds that a password of eight letters, which everybody knows, deserves.
const ROUNDS: u32 = 1;

/// The file of certificates that the caller trusts: what `SSL_CERT_FILE` names, else the system's.
pub(super) fn roots(caller: &Caller) -> Option<PathBuf> {
    let named = caller.variable("SSL_CERT_FILE").map(PathBuf::from);
    named.into_iter().chain(ROOTS.iter().map(PathBuf::from)).find(|path| path.exists())
}

/// In the forms that the plan asks for.
pub(super) fn certificates(plan: &Plan, roots: Option<&Path>, own: &str) -> Result<Certificates, Error> {
    let cannot_read =
        |path: &Path, why: &std::io::Error| Error::setup(format!("cannot read certificates in {}: {why}", output::path(path)));
    let mut pem = match roots {
        Some(path) => std::fs::read(path).map_err(|e| cannot_read(path, &e))?,
        None => Vec::new(),
    };
    if !pem.is_empty() && !pem.ends_with(b"\n") {
        pem.push(b'\n');
    }
    pem.extend_from_slice(own.as_bytes());
    let asks = |step: &MountStep| matches!(step, MountStep::File { content: Content::JavaCertificates, .. });
    let java = if plan.mounts.iter().any(asks) { java_store(&pem)? } else { Vec::new() };
    Ok(Certificates { pem, java })
}

/// A PKCS #12 store of certificates to trust. What is no certificate is left out, as OpenSSL does.
fn java_store(pem: &[u8]) -> Result<Vec<u8>, Error> {
    let mut store = KeyStore::new();
    for (number, der) in (0..).zip(CertificateDer::pem_slice_iter(pem).flatten()) {
        if let Ok(certificate) = Certificate::from_der(&der) {
            let number: u32 = number;
            store.add_entry(&format!("trusted-{number}"), KeyStoreEntry::Certificate(certificate));
        }
    }
    let written = store.writer(PASSWORD).encryption_iterations(ROUNDS).mac_iterations(ROUNDS).write();
    written.map_err(|e| Error::setup(format!("cannot make Java's store of certificates: {e}")))
}
