//! From a policy's routes to the gateway, and to what must stand inside for programs to find it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hermes_profiles::{Network, Policy, UnknownHosts};

use super::files::View;
use super::mounts::MARKER;
use crate::plan::{Content, GATEWAY_ADDRESS, GatewayPlan, NetworkPlan};
use crate::survey::{Found, Survey};

/// Ports that one sandbox can have: every one is a listener, and they travel in one message.
pub const MOST_PORTS: usize = 100;
/// Ports on which hosts that no route names can be reached, where they can: a port without a listener is refused before
/// anybody could be asked.
const USUAL_PORTS: [u16; 6] = [22, 80, 443, 3000, 8080, 8443];
/// Where the explicit proxy listens unless a route leads there, as proxies usually do.
const PROXY_PORT: u16 = 3128;
/// Where names are resolved.
const RESOLVER: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";
/// Which modules of the C library look names up. Modules that ask daemons of the host reach none inside, and one that says that a
/// name does not exist keeps the next from being asked.
const NAME_SERVICES: &str = "/etc/nsswitch.conf";
/// Where programs look for the certificates that they trust, where nothing names another place.
pub const BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
const JAVA_STORES: &[&str] = &["/etc/ssl/certs/java/cacerts", "/etc/pki/ca-trust/extracted/java/cacerts"];
/// Variables that name a file of trusted certificates: of OpenSSL, curl, Python's requests, pip and httpx, git, Node, cargo, npm,
/// deno, the AWS tools, gRPC and Nix.
const CERTIFICATE_VARIABLES: &[&str] = &[
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "CARGO_HTTP_CAINFO",
    "npm_config_cafile",
    "DENO_CERT",
    "AWS_CA_BUNDLE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "NIX_SSL_CERT_FILE",
];
/// How the C library, c-ares and Go resolve names without UDP: resolv.conf(5), and Go by the C library.
const WITHOUT_UDP: &[(&str, &str)] = &[("RES_OPTIONS", "use-vc"), ("GODEBUG", "netdns=cgo")];
const PROXY_VARIABLES: &[&str] = &["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];

/// Paths that the plan of a sandbox with routes asks about.
pub fn paths() -> Vec<&'static str> {
    [&[RESOLVER, HOSTS, NAME_SERVICES], BUNDLES, JAVA_STORES].concat()
}

/// Is there a way out at all?
pub fn is_mediated(policy: &Policy) -> bool {
    matches!(policy.network, Network::Routes(_)) && (!policy.routes().is_empty() || policy.unknown_hosts != UnknownHosts::Refuse)
}

/// The way out that the policy's routes need.
pub fn gateway(policy: &Policy, network: NetworkPlan, scratch: Option<&Path>) -> Option<GatewayPlan> {
    let routes = policy.routes();
    if !is_mediated(policy) || !matches!(network, NetworkPlan::Private | NetworkPlan::Notified) {
        return None;
    }
    let mut ports: BTreeSet<u16> = routes.iter().flat_map(|route| route.ports.iter().copied()).collect();
    if policy.unknown_hosts != UnknownHosts::Refuse {
        ports.extend(USUAL_PORTS);
    }
    let proxy = (PROXY_PORT..).find(|port| !ports.contains(port)).unwrap_or(PROXY_PORT);
    let directory = if network == NetworkPlan::Private { Some(Path::new(MARKER)) } else { scratch };
    let certificates = directory.map(|directory| directory.join("certificates.pem"));
    Some(GatewayPlan { ports: ports.into_iter().collect(), proxy, certificates })
}

/// Files that stand inside.
pub fn files(gateway: &GatewayPlan, view: &View, survey: &Survey) -> Vec<(PathBuf, Content)> {
    // Where a symlink leads; what is not there cannot be covered in a tree of the host.
    let place = |path: &str| {
        let path = Path::new(path);
        match survey.get(path) {
            Found::Present { real, .. } => Some(real.clone()),
            Found::Absent => view.covering(path).is_none().then(|| path.to_owned()),
            Found::Unreadable(_) => None,
        }
    };
    let resolver =
        Content::Text(format!("# By hermes-sandbox: names that no route permits do not exist.\nnameserver {GATEWAY_ADDRESS}\n"));
    let mut files: Vec<(PathBuf, Content)> = [(RESOLVER, resolver), (HOSTS, Content::Hosts)]
        .into_iter()
        .filter_map(|(path, content)| Some((place(path)?, content)))
        .collect();
    let there = |path: &str| match survey.get(Path::new(path)) {
        Found::Present { real, .. } => view.covering(real).map(|_| real.clone()),
        _ => None,
    };
    let over = |paths: &[&str], content: Content| -> Vec<_> {
        paths.iter().filter_map(|path| there(path)).map(|real| (real, content.clone())).collect()
    };
    files.extend(gateway.certificates.iter().map(|path| (path.clone(), Content::Certificates)));
    files.extend(over(BUNDLES, Content::Certificates));
    files.extend(over(JAVA_STORES, Content::JavaCertificates));
    // Without the file the C library looks into hosts(5) and asks DNS by itself.
    files.extend(over(&[NAME_SERVICES], Content::NameServices));
    files
}

/// Variables by which programs find the proxy and trust it.
pub fn variables(network: NetworkPlan, gateway: &GatewayPlan) -> Vec<(String, String)> {
    let proxy = format!("http://{GATEWAY_ADDRESS}:{}", gateway.proxy);
    let mut all: Vec<(String, String)> = vec![("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned())];
    let mut both = |name: &str, value: &str| {
        all.extend([(name.to_owned(), value.to_owned()), (name.to_ascii_lowercase(), value.to_owned())]);
    };
    PROXY_VARIABLES.iter().for_each(|name| both(name, &proxy));
    both("NO_PROXY", "localhost,127.0.0.1,::1");
    // Java knows of no variables but this one.
    let java =
        ["http", "https"].map(|scheme| format!("-D{scheme}.proxyHost={GATEWAY_ADDRESS} -D{scheme}.proxyPort={}", gateway.proxy));
    let java = format!("{} -Dhttp.nonProxyHosts=localhost|127.*|[::1]", java.join(" "));
    all.push(("JAVA_TOOL_OPTIONS".to_owned(), java));
    if network == NetworkPlan::Notified {
        all.extend(WITHOUT_UDP.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    }
    if let Some(file) = &gateway.certificates {
        let file = file.display().to_string();
        all.extend(CERTIFICATE_VARIABLES.iter().map(|name| ((*name).to_owned(), file.clone())));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_keeps_off_the_ports_of_routes() {
        let gateway = GatewayPlan { ports: vec![443], proxy: 3129, certificates: Some("/c".into()) };
        let variables = variables(NetworkPlan::Private, &gateway);
        let value = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        assert_eq!(value("https_proxy"), Some("http://198.18.0.1:3129"));
        assert_eq!(value("NO_PROXY"), value("no_proxy"));
        assert_eq!(value("SSL_CERT_FILE"), Some("/c"));
        assert_eq!(value("RES_OPTIONS"), None, "UDP leads to the resolver");
    }

    #[test]
    fn without_namespaces_names_go_over_tcp_and_certificates_lie_in_the_scratch_directory() {
        let certificates = Some("/tmp/x/certificates.pem".into());
        let gateway = GatewayPlan { ports: vec![443], proxy: 3128, certificates };
        let variables = variables(NetworkPlan::Notified, &gateway);
        let has = |name: &str, value: &str| variables.contains(&(name.to_owned(), value.to_owned()));
        assert!(has("RES_OPTIONS", "use-vc") && has("SSL_CERT_FILE", "/tmp/x/certificates.pem"));
    }
}
