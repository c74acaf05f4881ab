//! TLS where requests are read: a certificate authority that only this sandbox trusts, and the verified way out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, NameConstraints, SanType, SerialNumber,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::host::Host;

/// ALPN identifiers (RFC 7301).
pub(crate) const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// How long certificates last; more than any sandbox does, less than what some clients refuse (398 days).
const LIFE: Duration = Duration::from_secs(90 * 24 * 3600);

/// Clocks of containers and virtual machines are behind at times.
const BACKDATED: Duration = Duration::from_secs(24 * 3600);

/// Leaves that are kept. A wildcard route must not fill the memory.
const MOST_LEAVES: usize = 1024;

/// No certificate, or no key, could be made, or no configuration from them.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up TLS: {0}")]
pub struct TlsError(String);

impl TlsError {
    pub(crate) fn new(why: impl std::fmt::Display) -> Self {
        Self(why.to_string())
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A certificate authority of one sandbox. Its key exists in this process's memory only.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    /// One key for all leaves: they are all ours, and a key takes longer to make than a certificate.
    leaf_key: KeyPair,
    leaves: Mutex<HashMap<Host, Arc<ServerConfig>>>,
}

impl Authority {
    /// Makes one. With `permitted` domains it can sign for these and what is below them only, whatever becomes of its key; names that a later
    /// policy adds are then refused by the programs inside.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn new(permitted: &[String]) -> Result<Self, TlsError> {
        let key = KeyPair::generate().map_err(TlsError::new)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "hermes-sandbox, this sandbox only");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = validity();
        if !permitted.is_empty() {
            let permitted_subtrees = permitted.iter().map(|name| GeneralSubtree::DnsName(name.clone())).collect();
            params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
        }
        let certificate = params.self_signed(&key).map_err(TlsError::new)?;
        let leaf_key = KeyPair::generate().map_err(TlsError::new)?;
        Ok(Self {
            pem: certificate.pem(),
            certificate: certificate.der().clone(),
            issuer: Issuer::new(params, key),
            leaf_key,
            leaves: Mutex::default(),
        })
    }

    /// The certificate that programs inside have to trust, as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// How to be `host`.
    pub(crate) fn server(&self, host: &Host) -> Result<Arc<ServerConfig>, TlsError> {
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = leaves.get(host) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(self.leaf(host)?);
        if leaves.len() >= MOST_LEAVES {
            leaves.clear();
        }
        leaves.insert(host.clone(), Arc::clone(&config));
        Ok(config)
    }

    fn leaf(&self, host: &Host) -> Result<ServerConfig, TlsError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![match host {
            Host::Name(name) => SanType::DnsName(name.as_str().try_into().map_err(TlsError::new)?),
            Host::Address(address) => SanType::IpAddress(*address),
        }];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // OpenSSL 3 in strict mode, as Python uses it since 3.13, wants the key identifier of the issuer (RFC 5280, 4.2.1.1).
        params.use_authority_key_identifier_extension = true;
        let mut serial = [0; 16];
        provider().secure_random.fill(&mut serial).map_err(|_| TlsError::new("no randomness"))?;
        serial[0] &= 0x7f;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        (params.not_before, params.not_after) = validity();
        let leaf = params.signed_by(&self.leaf_key, &self.issuer).map_err(TlsError::new)?;
        let chain = vec![leaf.der().clone(), self.certificate.clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.leaf_key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(TlsError::new)?;
        config.alpn_protocols = vec![H2.to_vec(), HTTP_1_1.to_vec()];
        Ok(config)
    }
}

/// The same, but only HTTP/1.1 is offered.
pub(crate) fn without_h2(config: &ServerConfig) -> ServerConfig {
    let mut config = config.clone();
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    config
}

fn validity() -> (time::OffsetDateTime, time::OffsetDateTime) {
    let now = SystemTime::now();
    ((now - BACKDATED).into(), (now + LIFE).into())
}

/// How servers outside are verified.
#[derive(Clone)]
pub struct Clients {
    /// Offers HTTP/1.1 only.
    pub(crate) h1: Arc<ClientConfig>,
    /// Offers HTTP/2 as well.
    pub(crate) h2: Arc<ClientConfig>,
}

impl Clients {
    /// Trusts `roots`.
    ///
    /// # Errors
    /// A root that is no certificate.
    pub fn new(roots: impl IntoIterator<Item = CertificateDer<'static>>) -> Result<Self, TlsError> {
        let mut store = RootCertStore::empty();
        for root in roots {
            store.add(root).map_err(TlsError::new)?;
        }
        Self::with(store)
    }

    /// Trusts what the system trusts (`SSL_CERT_FILE` of the caller included).
    ///
    /// # Errors
    /// There are no roots at all.
    pub fn system() -> Result<Self, TlsError> {
        let mut store = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        store.add_parsable_certificates(found.certs);
        if store.is_empty() {
            return Err(TlsError::new("the system has no root certificates (install ca-certificates)"));
        }
        Self::with(store)
    }

    fn with(store: RootCertStore) -> Result<Self, TlsError> {
        let mut h1 = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::new)?
            .with_root_certificates(store)
            .with_no_client_auth();
        h1.alpn_protocols = vec![HTTP_1_1.to_vec()];
        let mut h2 = h1.clone();
        h2.alpn_protocols = vec![H2.to_vec(), HTTP_1_1.to_vec()];
        Ok(Self { h1: Arc::new(h1), h2: Arc::new(h2) })
    }
}

/// What a server's certificate must be for.
pub(crate) fn server_name(host: &Host) -> Result<ServerName<'static>, TlsError> {
    match host {
        Host::Name(name) => ServerName::try_from(name.clone()).map_err(TlsError::new),
        Host::Address(address) => Ok(ServerName::IpAddress((*address).into())),
    }
}
