//! Ways around the routes by names and addresses: none leads anywhere, and each leads somewhere without a sandbox.
#![allow(clippy::unwrap_used)]

use hermes_tests::{Internet, Outcome, Route, Sandbox};

const PLAIN: Route = Route::to("plain.test", &[80, 443]);
const READ: Route = Route::rule("read.test", &[80, 443], "methods = [\"GET\"]");

fn probe(sandbox: &Sandbox, program: &str) -> Outcome {
    sandbox.python(&sandbox.probe(program))
}

fn plain_probe(sandbox: &Sandbox, program: &str) -> Outcome {
    sandbox.plain_python(&sandbox.probe(program))
}

#[test]
fn addresses_in_every_spelling() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&[PLAIN, READ]);
    // The address of other.test, and of plain.test: a route for a name is none for its address. Loopback, the host's own
    // address, and where clouds hand out credentials.
    let program = "
spellings = [b'93.184.216.36', b'1572395044', b'0x5db8d824', b'0135.0270.0330.044', b'93.12113956', b'0x5d.0xb8.0xd8.0x24', b'93.184.55332',
    b'[::ffff:93.184.216.36]', b'[::ffff:5db8:d824]', b'[64:ff9b::5db8:d824]', b'[::93.184.216.36]', b'plain.test@93.184.216.36', b'plain.test:80@93.184.216.36',
    b'93.184.216.36\\0.plain.test', b'93.184.216.36%00.plain.test', b'93.184.216.36#.plain.test', b'93.184.216.36/.plain.test', b'93.184.216.36 plain.test',
    b'93.184.216.36.', b'93.184.216.036', b'93.184.216.36\\\\@plain.test', b'93.184.216.34', b'1572395042',
    b'127.0.0.1', b'2130706433', b'0x7f.1', b'127.1', b'0177.0.0.1', b'[::1]', b'[::ffff:127.0.0.1]', b'localhost', b'a.localhost', b'0.0.0.0', b'0', b'[::]',
    b'45.33.32.1', b'169.254.169.254', b'2852039166', b'[::ffff:a9fe:a9fe]', b'metadata.google.internal', b'10.1.2.3', b'198.18.0.1', b'198.18.0.1:3128']
for host in spellings:
    name = repr(host)
    tell('absolute ' + name, exchange(PROXY, get(b'http://' + host + b'/@', host)))
    tell('absolute without host ' + name, exchange(PROXY, b'GET http://' + host + b'/@ HTTP/1.0\\r\\n\\r\\n'))
    tell('origin form ' + name, exchange(PROXY, get(b'/@', host)))
    if not host.endswith(b':3128'):
        tell('tunnel ' + name, tunnel(host + b':80', get(b'/@', host)))
        tell('tunnel tls ' + name, tunnel(host + b':443', get(b'/@', host), 'plain.test'))
for host in ['93.184.216.36', '93.184.216.34', '45.33.32.1', '169.254.169.254', '10.1.2.3', '::ffff:93.184.216.36', '64:ff9b::5db8:d824', '2001:db8::1',
             '127.0.0.1', '::1', '0.0.0.0', '198.18.0.1']:
    for sni in (None, '', 'plain.test', 'read.test', 'other.test'):
        tell(f'direct {host} {sni}', exchange((host, 443 if sni is not None else 80), get(b'/@', b'plain.test'), sni))
print('END')";
    let result = probe(&sandbox, program);
    result.ok().says("END").never_says("REACHED");
    internet.never_saw(&sandbox.canary("path"), &result);
    let control = "
for place in ['93.184.216.36', '169.254.169.254', '10.1.2.3', '127.0.0.1', '45.33.32.1', '0.0.0.0']: tell('control', exchange((place, 80), get(b'/', b'x')))
tell('control', exchange(('93.184.216.36', 443), get(b'/', b'x'), 'plain.test'))";
    let control = plain_probe(&sandbox, control);
    assert_eq!(control.ok().out().matches("REACHED control").count(), 7, "{}", control.report());
    let control = "
tell('absolute', exchange(PROXY, get(b'http://plain.test/@', b'plain.test')))
tell('tunnel', tunnel(b'plain.test:80', get(b'/@', b'plain.test')))
tell('tunnel tls', tunnel(b'plain.test:443', get(b'/@', b'plain.test'), 'plain.test'))
tell('direct', exchange((socket.gethostbyname('plain.test'), 443), get(b'/@', b'plain.test'), 'plain.test'))";
    let control = probe(&sandbox, control);
    assert_eq!(control.ok().out().matches("REACHED").count(), 4, "{}", control.report());
}

#[test]
fn names_that_lead_inward() {
    let Some(internet) = Internet::here() else { return };
    // No other test of this file has to do with these ports.
    let routes = [Route::to("*.rebind.test", &[8080]), Route::rule("*.rebind.test", &[8000], "methods = [\"GET\"]")];
    let sandbox = internet.with(&routes);
    let program = "
for name in ['private', 'home', 'loopback', 'zero', 'metadata', 'nat', 'own', 'synthetic']:
    name += '.rebind.test'
    for port in (8080, 8000):
        host = f'{name}:{port}'.encode()
        tell(f'absolute {name} {port}', exchange(PROXY, get(b'http://' + host + b'/@', host)))
        tell(f'tunnel {name} {port}', tunnel(host, get(b'/@', host)))
        tell(f'direct {name} {port}', exchange((name, port), get(b'/@', host)))
print('END')";
    let result = probe(&sandbox, program);
    result.ok().says("END").never_says("REACHED");
    for port in [":8080\"", ":8000\""] {
        internet.never_saw(port, &result);
    }
    // With the address named, and without a sandbox, each is there.
    let routes =
        [Route::rule("*.rebind.test", &[8080], "addresses = [\"10.1.2.3\", \"192.168.7.0/24\", \"169.254.169.254/32\"]")];
    let named = internet.with(&routes);
    let control = "for name in ['private', 'home', 'metadata', 'nat']: tell(name, exchange((name + '.rebind.test', 8080), get(b'/', name.encode() + b'.rebind.test:8080')))";
    let inside = probe(&named, control);
    inside.ok().says("REACHED private").says("REACHED home").says("REACHED metadata").says("refused nat");
    let outside = plain_probe(&sandbox, control);
    assert_eq!(outside.ok().out().matches("REACHED").count(), 4, "{}", outside.report());
}

#[test]
fn a_name_that_changes_its_address_leads_inward_never() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&[Route::to("*.flip.test", &[80]), Route::rule("*.flip.test", &[443], "methods = [\"GET\"]")]);
    let (first, second) = (sandbox.canary("first").to_lowercase(), sandbox.canary("second").to_lowercase());
    let program = format!(
        "
for n in range(4): tell(f'plain {{n}}', exchange(('{first}.flip.test', 80), get(b'/@', b'{first}.flip.test')))
for n in range(4): tell(f'read {{n}}', exchange(('{second}.flip.test', 443), get(b'/@', b'{second}.flip.test'), '{second}.flip.test'))
print('END')"
    );
    let result = probe(&sandbox, &program);
    result.ok().says("END").says("refused plain 3").says("refused read 3");
    let seen = internet.seen(&sandbox.canary("path"));
    assert!(seen.iter().all(|line| line["at"].as_str().unwrap().starts_with("93.184.216.34:")), "{seen:?}");
    // It did lead somewhere before, and leads inward outside.
    assert!(!seen.is_empty(), "{}", result.report());
    plain_probe(&sandbox, &format!("tell('control', exchange(('{first}.flip.test', 80), get(b'/', b'x')))"))
        .says("REACHED control");
}

#[test]
fn names_that_look_alike() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&[PLAIN, READ, Route::to("*.wild.test", &[80, 443])]);
    let program = "
same = ['plain.test', 'plain.test.', 'PLAIN.test', 'a.wild.test', 'a.b.WILD.test']
alike = ['xplain.test', 'plain.test.evil.test', 'evil.test', 'test', 'plain', 'plain-test', 'plain.test.test', 'wild.test', 'xwild.test', 'a.wild.test.evil.test',
    'plain.test..', '.plain.test', 'plain..test', '*.wild.test', '.wild.test', 'other.test', 'shared.test', 'pl\\u0430in.test', 'plain\\u3002test', 'plain\\uff0etest', 'plain.te\\u017ft', 'xn--pln-2na.test',
    'plain.test:80@other.test', 'other.test\\0.plain.test', 'other.test#.wild.test', 'other.test/.wild.test', 'other.test?.wild.test', 'other.test%2f.wild.test', 'other.test .wild.test']
for name in same + alike:
    kind, shown, host = ('same' if name in same else 'alike'), ascii(name), name.encode()
    tell(f'absolute {kind} {shown}', exchange(PROXY, get(b'http://' + host + b'/@', host)))
    tell(f'tunnel {kind} {shown}', tunnel(host + b':80', get(b'/@', host)))
    try: address = socket.getaddrinfo(name, 80, socket.AF_INET)[0][4]
    except (OSError, ValueError) as error: print('refused direct', kind, shown, error)
    else: tell(f'direct {kind} {shown}', exchange(address, get(b'/@', host)))
print('END')";
    let result = probe(&sandbox, program);
    result
        .ok()
        .says("END")
        .never_says("REACHED absolute alike")
        .never_says("REACHED tunnel alike")
        .never_says("REACHED direct alike");
    assert_eq!(result.out().matches(" same ").count(), 15, "{}", result.report());
    assert_eq!(result.out().matches("REACHED").count(), 15, "{}", result.report());
    let control = "for name in ['xplain.test', 'plain.test.evil.test', 'other.test']: tell('control', exchange((name, 80), get(b'/', name.encode())))";
    let control = plain_probe(&sandbox, control);
    assert_eq!(control.ok().out().matches("REACHED").count(), 3, "{}", control.report());
}

#[test]
fn a_connection_to_one_host_that_names_another() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&[PLAIN, READ]);
    let program = "
for host in ('plain.test', 'read.test'):
    address = socket.gethostbyname(host)
    for sni in ('shared.test', 'other.test', '', 'plain.test.evil.test', '93.184.216.36', 'read.test' if host == 'plain.test' else 'plain.test'):
        tell(f'direct name {host} {sni}', exchange((address, 443), get(b'/@', host.encode()), sni))
        tell(f'tunnel name {host} {sni}', tunnel(host.encode() + b':443', get(b'/@', host.encode()), sni))
    for named in (b'shared.test', b'other.test', b'', b'plain.test:8080', host.encode() + b':443', b'127.0.0.1', host.encode() + b'@other.test', host.encode() + b', other.test'):
        tell(f'direct host {host} {named}', exchange((address, 80), get(b'/@', named)))
        tell(f'tunnel host {host} {named}', tunnel(host.encode() + b':80', get(b'/@', named)))
        tell(f'absolute {host} {named}', exchange((address, 80), get(b'http://' + named + b'/@', host.encode())))
        if named != host.encode() + b':443': tell(f'absolute to the proxy {host} {named}', exchange(PROXY, get(b'http://' + named + b'/@', host.encode())))
    tell(f'two hosts {host}', exchange((address, 80), get(b'/@', host.encode(), b'Host: shared.test')))
    tell(f'no host {host}', exchange((address, 80), b'GET /@ HTTP/1.1\\r\\n\\r\\n', patience=2))
for named in (b'shared.test', b'other.test', b'read.test:8443', b''):
    tell(f'inside TLS {named}', exchange((socket.gethostbyname('read.test'), 443), get(b'/@', named), 'read.test'))
    tell(f'inside TLS, absolute {named}', exchange((socket.gethostbyname('read.test'), 443), get(b'https://' + named + b'/@', b'read.test'), 'read.test'))
print('END')";
    let result = probe(&sandbox, program);
    result.ok().says("END").never_says("REACHED");
    let word = sandbox.canary("path");
    internet.never_saw(&word, &result);
    // By HTTP/2 as well, where the server is asked for in the authority.
    for host in ["shared.test", "other.test", "read.test:8443"] {
        let curl = format!("curl -sS --max-time 20 --http2 -H 'Host: {host}' https://read.test/{word}");
        internet.never_saw(&word, sandbox.sh(&curl).never_says("GOT-IT"));
    }
    let control = "tell('control', exchange(('plain.test', 443), get(b'/', b'shared.test'), 'shared.test'))\ntell('control', exchange(('plain.test', 80), get(b'/', b'shared.test')))";
    let control = plain_probe(&sandbox, control);
    assert_eq!(control.ok().out().matches("REACHED").count(), 2, "{}", control.report());
    let control =
        "for host in ('plain.test', 'read.test'): tell('control', exchange((host, 443), get(b'/', host.encode()), host))";
    assert_eq!(probe(&sandbox, control).ok().out().matches("REACHED").count(), 2);
    sandbox.sh("curl -sS --max-time 20 --http2 -H 'Host: read.test' https://read.test/").ok().says("GOT-IT");
}

#[test]
fn the_proxy_leads_to_named_ports_of_named_hosts_only() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&[PLAIN, READ]);
    let program = "
for host in (b'plain.test', b'read.test', b'other.test'):
    for port in (b'8443', b'8080', b'22', b'7006', b'0', b'65536', b'+80', b'080', b'', b'80 ', b'80@other.test:80', b'4294967376'):
        if host == b'other.test' or port != b'080': tell(f'tunnel {host} {port}', tunnel(host + b':' + port, get(b'/@', host)))
        if port not in (b'', b'080'): tell(f'absolute {host} {port}', exchange(PROXY, get(b'http://' + host + b':' + port + b'/@', host + b':' + port)))
for scheme in (b'ftp', b'https', b'file', b'gopher', b'ws', b'unix', b''):
    tell(f'scheme {scheme}', exchange(PROXY, get(scheme + b'://other.test/@', b'other.test')))
ip = socket.inet_aton('93.184.216.34')
tell('SOCKS 4', exchange(PROXY, b'\\4\\1\\0\\x50' + ip + b'x\\0' + get(b'/@', b'plain.test')))
tell('SOCKS 4a', exchange(PROXY, b'\\4\\1\\0\\x50\\0\\0\\0\\1x\\0other.test\\0' + get(b'/@', b'plain.test')))
tell('SOCKS 5', exchange(PROXY, b'\\5\\1\\0\\5\\1\\0\\1' + ip + b'\\0\\x50' + get(b'/@', b'plain.test')))
tell('TLS to the proxy', exchange(PROXY, get(b'http://other.test/@', b'other.test'), 'plain.test'))
tell('PROXY protocol', exchange(PROXY, b'PROXY TCP4 127.0.0.1 93.184.216.36 1 80\\r\\n' + get(b'http://other.test/@', b'other.test')))
tell('preface', exchange(PROXY, b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' + get(b'http://other.test/@', b'other.test'), patience=2))
print('END')";
    let result = probe(&sandbox, program);
    result.ok().says("END").never_says("REACHED");
    internet.never_saw(&sandbox.canary("path"), &result);
    let control = "tell('control', exchange(('plain.test', 8443), get(b'/', b'plain.test'), 'plain.test'))\ntell('control', exchange(('plain.test', 7006), b''))";
    let control = plain_probe(&sandbox, control);
    assert_eq!(control.ok().out().matches("REACHED").count(), 2, "{}", control.report());
}
