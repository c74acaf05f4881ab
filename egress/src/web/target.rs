//! What a request is about, and what of it goes on. Pure.

use std::sync::LazyLock;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Version};

use crate::host::{self, Host};
use crate::reason::Reason;

/// What a connection that carries requests is to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The explicit proxy: each request names its host.
    Proxy,
    /// One host.
    Host {
        /// Which.
        host: Host,
        /// On which port.
        port: u16,
        /// Inside TLS that was terminated.
        tls: bool,
    },
}

impl Entry {
    /// The host and port, if they are known before any request.
    pub(crate) fn place(&self) -> (Option<&Host>, u16) {
        match self {
            Self::Proxy => (None, 0),
            Self::Host { host, port, .. } => (Some(host), *port),
        }
    }

    fn default_port(&self) -> u16 {
        if matches!(self, Self::Host { tls: true, .. }) { 443 } else { 80 }
    }
}

/// The host and port of a request. Every place that names them must name the same.
pub(crate) fn host_of(parts: &Parts, entry: &Entry) -> Result<(Host, u16), Reason> {
    let default_port = entry.default_port();
    let read = |text: &str| host::authority(text, default_port).map_err(|why| Reason::malformed(format!("{text:?}: {why}")));
    let target = parts.uri.authority().map(|authority| read(authority.as_str())).transpose()?;
    let scheme = parts.uri.scheme_str();
    // RFC 9112, 3.2: a server answers 400 to a request with more than one Host, or with one that is no host.
    let mut fields = parts.headers.get_all(header::HOST).iter();
    let field = match (fields.next(), fields.next()) {
        (None, _) => None,
        (Some(value), None) => Some(read(value.to_str().map_err(|_| Reason::malformed("a Host that is no text"))?)?),
        _ => return Err(Reason::malformed("more than one Host")),
    };
    let needed = match entry {
        Entry::Proxy => {
            if scheme != Some("http") {
                return Err(match scheme {
                    Some(_) => Reason::unsupported("a proxied request is for http://; use CONNECT for others"),
                    None => Reason::malformed("this is a proxy: expected an absolute address, or CONNECT"),
                });
            }
            target.clone().ok_or_else(|| Reason::malformed("no host"))?
        }
        Entry::Host { host, port, tls } => {
            if scheme.is_some_and(|scheme| scheme != if *tls { "https" } else { "http" }) {
                return Err(Reason::malformed("the scheme is another than the connection's"));
            }
            (host.clone(), *port)
        }
    };
    if parts.version == Version::HTTP_11 && field.is_none() {
        return Err(Reason::malformed("no Host"));
    }
    for named in [target, field].into_iter().flatten() {
        if named != needed {
            return Err(Reason::OtherHost { named: format!("{}:{}", named.0, named.1) });
        }
    }
    Ok(needed)
}

/// The host and port of a CONNECT (RFC 9110, 9.3.6): both must be there.
pub(crate) fn tunnel_of(parts: &Parts) -> Result<(Host, u16), Reason> {
    let authority = parts.uri.authority().ok_or_else(|| Reason::malformed("CONNECT without a host"))?;
    if parts.uri.path_and_query().is_some_and(|path| path.as_str() != "/" && !path.as_str().is_empty()) {
        return Err(Reason::malformed("CONNECT with a path"));
    }
    let place = |text: &str| match host::authority(text, 0) {
        Ok((_, 0)) => Err(Reason::malformed("CONNECT without a port")),
        Ok(place) => Ok(place),
        Err(why) => Err(Reason::malformed(format!("{text:?}: {why}"))),
    };
    let (host, port) = place(authority.as_str())?;
    let mut fields = parts.headers.get_all(header::HOST).iter();
    if let (Some(field), more) = (fields.next(), fields.next()) {
        let field = field.to_str().map_err(|_| Reason::malformed("a Host that is no text"))?;
        // Some clients leave the port out here.
        let named = host::authority(field, port).map_err(|why| Reason::malformed(format!("{field:?}: {why}")))?;
        if more.is_some() {
            return Err(Reason::malformed("more than one Host"));
        }
        if named != (host.clone(), port) {
            return Err(Reason::OtherHost { named: format!("{}:{}", named.0, named.1) });
        }
    }
    Ok((host, port))
}

/// Refuses methods that no rule can be meant to allow.
pub(crate) fn method(parts: &Parts, named: bool, secret: bool, paths: bool) -> Result<(), Reason> {
    // A server that traces sends back what it got, the secret included (RFC 9110, 9.3.8; CVE-2003-1567).
    if secret && matches!(parts.method.as_str(), "TRACE" | "TRACK" | "DEBUG") {
        return Err(Reason::unsupported("this method, on a route with a secret"));
    }
    // Frameworks take these for the request's method.
    const OVERRIDES: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
    if named && OVERRIDES.iter().any(|name| parts.headers.contains_key(*name)) {
        return Err(Reason::unsupported("a header that overrides the method, on a route that names methods"));
    }
    // And these for its path.
    const PATHS: [&str; 3] = ["x-original-url", "x-rewrite-url", "x-original-uri"];
    if paths && PATHS.iter().any(|name| parts.headers.contains_key(*name)) {
        return Err(Reason::unsupported("a header that overrides the path, on a route that names paths"));
    }
    Ok(())
}

/// Does the request ask to go on as WebSocket? Any other upgrade is not passed on: `h2c` is a way around this proxy.
pub(crate) fn wants_websocket(parts: &Parts) -> bool {
    let token = |name: HeaderName, wanted: &str| {
        let values = parts.headers.get_all(name);
        values
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|token| token.trim().eq_ignore_ascii_case(wanted))
    };
    parts.version == Version::HTTP_11
        && parts.method == Method::GET
        && token(header::CONNECTION, "upgrade")
        && parts.headers.get_all(header::UPGRADE).iter().count() == 1
        && parts.headers.get(header::UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Removes what is about one connection only (RFC 9110, 7.6.1), and what `Connection` names.
pub(crate) fn end_to_end(headers: &mut HeaderMap) {
    static ALWAYS: LazyLock<[HeaderName; 8]> = LazyLock::new(|| {
        [
            header::CONNECTION,
            header::TRANSFER_ENCODING,
            header::UPGRADE,
            header::PROXY_AUTHORIZATION,
            header::PROXY_AUTHENTICATE,
            HeaderName::from_static("keep-alive"),
            HeaderName::from_static("proxy-connection"),
            HeaderName::from_static("http2-settings"),
        ]
    });
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // What frames or routes a message is not the connection's, whoever says so.
        .filter(|name| *name != header::HOST && *name != header::CONTENT_LENGTH)
        .collect();
    for name in named.iter().chain(ALWAYS.iter()) {
        headers.remove(name);
    }
    // RFC 9110, 10.1.4: "trailers" is the one that HTTP/2 keeps.
    let trailers = headers.get(header::TE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"trailers"));
    headers.remove(header::TE);
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parts(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn fixed(tls: bool) -> Entry {
        Entry::Host { host: Host::parse("a.test").unwrap(), port: if tls { 443 } else { 80 }, tls }
    }

    #[test]
    fn all_places_name_the_same_host() {
        let host_of = |uri: &str, headers: &[(&str, &str)], entry: &Entry| host_of(&parts("GET", uri, headers), entry);
        assert!(host_of("/x", &[("host", "A.test")], &fixed(true)).is_ok());
        assert!(host_of("/x", &[("host", "a.test:443")], &fixed(true)).is_ok());
        assert!(host_of("http://a.test/x", &[("host", "a.test")], &fixed(false)).is_ok());
        assert!(host_of("http://a.test:8080/x", &[("host", "a.test:8080")], &Entry::Proxy).is_ok());
        let other = |result: Result<_, Reason>| assert!(matches!(result, Err(Reason::OtherHost { .. })), "{result:?}");
        other(host_of("/x", &[("host", "b.test")], &fixed(true)));
        other(host_of("/x", &[("host", "a.test:80")], &fixed(true)));
        other(host_of("http://b.test/x", &[("host", "a.test")], &fixed(false)));
        other(host_of("http://a.test/x", &[("host", "b.test")], &Entry::Proxy));
        other(host_of("http://a.test/x", &[("host", "b.test")], &fixed(false)));
        let malformed = |result: Result<_, Reason>| assert!(matches!(result, Err(Reason::Malformed { .. })), "{result:?}");
        malformed(host_of("/x", &[], &fixed(true)));
        malformed(host_of("/x", &[("host", "a.test"), ("host", "a.test")], &fixed(true)));
        malformed(host_of("/x", &[("host", "a.test, b.test")], &fixed(true)));
        malformed(host_of("/x", &[("host", "x@a.test")], &fixed(true)));
        malformed(host_of("http://x@a.test/", &[("host", "a.test")], &Entry::Proxy));
        malformed(host_of("https://a.test/x", &[("host", "a.test")], &fixed(false)));
        malformed(host_of("/x", &[("host", "a.test")], &Entry::Proxy));
        malformed(host_of("http://0x7f.1/", &[("host", "0x7f.1")], &Entry::Proxy));
        assert!(matches!(host_of("https://a.test/x", &[("host", "a.test")], &Entry::Proxy), Err(Reason::Unsupported { .. })));
    }

    #[test]
    fn tunnels() {
        assert_eq!(tunnel_of(&parts("CONNECT", "a.test:443", &[])), Ok((Host::parse("a.test").unwrap(), 443)));
        assert!(tunnel_of(&parts("CONNECT", "a.test:443", &[("host", "a.test")])).is_ok());
        assert!(tunnel_of(&parts("CONNECT", "a.test", &[])).is_err());
        assert!(tunnel_of(&parts("CONNECT", "a.test:443", &[("host", "b.test:443")])).is_err());
        assert!(tunnel_of(&parts("CONNECT", "x@a.test:443", &[])).is_err());
        assert!(
            tunnel_of(&parts("CONNECT", "[::ffff:127.0.0.1]:443", &[])).is_ok_and(|(host, _)| host.to_string() == "127.0.0.1")
        );
    }

    #[test]
    fn what_is_about_one_connection_stays_there() {
        let mut request = parts(
            "GET",
            "/",
            &[
                ("connection", "close, X-Private, host, content-length"),
                ("x-private", "1"),
                ("proxy-authorization", "Basic x"),
                ("host", "a.test"),
                ("content-length", "0"),
                ("te", "trailers"),
                ("upgrade", "h2c"),
                ("http2-settings", "x"),
                ("accept", "*/*"),
            ],
        );
        assert!(!wants_websocket(&request));
        end_to_end(&mut request.headers);
        let mut names: Vec<_> = request.headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "content-length", "host", "te"]);
    }

    #[test]
    fn websockets() {
        let with =
            |upgrade: &str| wants_websocket(&parts("GET", "/", &[("connection", "keep-alive, Upgrade"), ("upgrade", upgrade)]));
        assert!(with("WebSocket"));
        assert!(!with("h2c") && !with("websocket, h2c"));
    }
}
