//! Requests that two readers could take for different ones: what arrives was read, decided and written anew.
#![allow(clippy::unwrap_used)]

use hermes_tests::{Internet, Outcome, Route, Sandbox};

const READ: Route = Route::rule("read.test", &[80, 443], "methods = [\"GET\", \"POST\"]\npaths = [\"/open/**\"]");
/// Read as well: whoever speaks HTTP without TLS is.
const PLAIN: Route = Route::to("plain.test", &[80, 443]);

fn probe(sandbox: &Sandbox, program: &str) -> Outcome {
    sandbox.python(&sandbox.probe(program))
}

/// What may arrive where the path is `/open`, and what never.
#[track_caller]
fn only_open_paths(internet: &Internet, sandbox: &Sandbox, result: &Outcome) {
    let seen = internet.seen(&sandbox.canary("path"));
    let strayed: Vec<_> = seen.iter().filter(|line| !line["target"].as_str().unwrap().starts_with("/open/")).collect();
    assert!(strayed.is_empty(), "{strayed:?}\n{}", result.report());
    let odd = |host: &serde_json::Value| host != &serde_json::json!(["read.test"]) && host != &serde_json::json!(["plain.test"]);
    let strayed: Vec<_> = seen.iter().filter(|line| odd(&line["host"])).collect();
    assert!(strayed.is_empty(), "{strayed:?}\n{}", result.report());
}

#[test]
fn requests_in_requests() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&[READ]);
    let program = "
hidden = b'GET /@/hidden HTTP/1.1\\r\\nHost: read.test\\r\\n\\r\\n'
def post(*lines): return b'POST /open/x HTTP/1.1\\r\\nHost: read.test\\r\\n' + b''.join(line + b'\\r\\n' for line in lines) + b'\\r\\n'
length = b'Content-Length: %d' % len(hidden)
chunked = b'Transfer-Encoding: chunked'
bodies = {'chunked end': b'0\\r\\n\\r\\n' + hidden, 'as is': hidden, 'as chunk': b'%x\\r\\n%s\\r\\n0\\r\\n\\r\\n' % (len(hidden), hidden)}
heads = {
    'length and chunked': [length, chunked], 'chunked and length': [chunked, length], 'length 0, chunked': [b'Content-Length: 0', chunked],
    'two lengths': [b'Content-Length: 0', length], 'two lengths, other order': [length, b'Content-Length: 0'], 'list of lengths': [b'Content-Length: 0, %d' % len(hidden)],
    'length with sign': [b'Content-Length: +%d' % len(hidden)], 'length with space': [b'Content-Length : %d' % len(hidden)], 'negative': [b'Content-Length: -1'],
    'hexadecimal': [b'Content-Length: 0x%x' % len(hidden)], 'huge': [b'Content-Length: 18446744073709551616'], 'empty length': [b'Content-Length:'],
    'space before colon': [b'Transfer-Encoding : chunked', length], 'tab': [b'Transfer-Encoding:\\tchunked', length], 'vertical tab': [b'Transfer-Encoding: \\x0bchunked', length],
    'xchunked': [b'Transfer-Encoding: xchunked', length], 'identity': [b'Transfer-Encoding: identity', length], 'chunked, identity': [b'Transfer-Encoding: chunked, identity', length],
    'two codings': [chunked, b'Transfer-Encoding: identity', length], 'quoted': [b'Transfer-Encoding: \"chunked\"', length], 'capitals': [b'TRANSFER-ENCODING: CHUNKED', length],
    'folded': [b'Transfer-Encoding:', b' chunked', length], 'folded length': [b'Content-Length:', b' 0', length], 'folded other': [b'X: y', b' Content-Length: 0', length],
    'bare feed': [b'X: y\\nTransfer-Encoding: chunked', length], 'bare return': [b'X: y\\rTransfer-Encoding: chunked', length], 'NUL': [b'Transfer-Encoding\\0: chunked', length],
    'underscore': [b'Transfer_Encoding: chunked', b'Content_Length: 0'], 'none': [], 'upgrade': [b'Connection: Upgrade', b'Upgrade: h2c', b'HTTP2-Settings: AAMAAABkAAQAAP__'],
    'upgrade to nothing': [b'Connection: Upgrade', b'Upgrade: websocket', length], 'length named in connection': [b'Connection: Content-Length', length],
    'expect': [b'Expect: 100-continue', length],
}
for name, head in heads.items():
    for kind, body in bodies.items():
        tell(f'{name}, {kind}', exchange(('read.test', 80), post(*head) + body, patience=1.5))
for sizes in (b'0x%x', b'+%x', b'%x ;x', b'%x\\n', b' %x', b'%x;\\nx', b'00000000000000000%x', b'-1'):
    size = sizes % len(hidden) if b'%' in sizes else sizes
    tell(f'chunk {sizes}', exchange(('read.test', 80), post(chunked) + size + b'\\r\\n' + hidden + b'\\r\\n0\\r\\n\\r\\n', patience=1.5))
tell('trailer', exchange(('read.test', 80), post(chunked) + b'0\\r\\nGET /@/trailer HTTP/1.1: x\\r\\n\\r\\n', patience=1.5))
print('END')";
    let result = probe(&sandbox, program);
    result.ok().says("END");
    only_open_paths(internet, &sandbox, &result);
    // Honest messages arrive, and one inside another does where nobody looks.
    let control = "
hidden = b'GET /@/hidden HTTP/1.1\\r\\nHost: read.test\\r\\n\\r\\n'
tell('control', exchange(('read.test', 80), b'POST /open/x HTTP/1.1\\r\\nHost: read.test\\r\\nContent-Length: 0\\r\\n\\r\\n' + hidden, patience=3))
tell('honest', exchange(('read.test', 80), b'POST /open/x HTTP/1.1\\r\\nHost: read.test\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n1\\r\\nx\\r\\n0\\r\\n\\r\\n'))";
    probe(&sandbox, control).ok().says("REACHED honest");
    only_open_paths(internet, &sandbox, &result);
    sandbox.plain_python(&sandbox.probe(control)).ok().says("REACHED control");
    assert!(!internet.seen(&sandbox.canary("path")).is_empty(), "positive control");
}

#[test]
fn targets_and_fields_that_hold_more_than_one_thing() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&[READ, PLAIN]);
    let program = "
targets = [b'/open/../@', b'/open/%2e%2e/@', b'/open/..%2f@', b'/open//../@', b'/open/;/../@', b'/open/..;/@', b'/open/%252e%252e/@', b'/open\\\\..\\\\@', b'/open/\\\\../@',
    b'//read.test/@', b'/%6fpen/../@', b'/@?/open/x', b'/@#/open/x', b'/@%00/open/', b'/open/x HTTP/1.1\\r\\nHost: read.test\\r\\n\\r\\nGET /@', b'/open/x\\nGET /@', b'/open/x\\r\\n\\r\\nGET /@',
    b'*', b'@', b'open/@', b'http:/@', b'http:///@', b'http://other.test/@', b'//other.test/@', b'http://read.test\\x40other.test/@', b'http://other.test\\\\\\x40read.test/@', b'/open/./../@', b'/open/.%2e/@',
    b'/open/%c0%ae%c0%ae/@', b'/open/%u002e%u002e/@', b'/OPEN/@', b'/open/\\t/../@', b'/open%2f..%2f@']
for target in targets:
    for sni in (None, 'read.test'):
        tell(f'target {target} {sni}', exchange(('read.test', 443 if sni else 80), get(target, b'read.test'), sni, patience=3))
    tell(f'proxy {target}', exchange(PROXY, get(b'http://read.test' + target, b'read.test'), patience=3))
for method in (b'PUT', b'get', b'GETX', b'CONNECT', b'TRACE', b'POST /open/x HTTP/1.1\\r\\nX:', b'GET\\t/@', b'DELETE'):
    tell(f'method {method}', exchange(('read.test', 80), method + get(b'/@/method', b'read.test')[3:], patience=3))
for more in (b'X-HTTP-Method-Override: PUT', b'X-Original-URL: /@', b'X-Rewrite-URL: /@', b'X-Forwarded-Host: other.test'):
    tell(f'field {more}', exchange(('read.test', 80), get(b'/@/field', b'read.test', more), patience=3))
for line in (b'GET /@', b'GET /@ HTTP/0.9', b'GET /@ HTTP/1.2', b'GET /@ HTTP/2.0', b'GET  /@  HTTP/1.1', b'\\r\\nGET /@ HTTP/1.1', b' GET /@ HTTP/1.1', b'\\0GET /@ HTTP/1.1', b'GET /@ http/1.1', b'GET\\x0b/@ HTTP/1.1', b'GET /@\\x0c HTTP/1.1'):
    tell(f'line {line}', exchange(('read.test', 80), line + b'\\r\\nHost: read.test\\r\\n\\r\\n', patience=3))
print('END')";
    let program = program.replace("/@", "\u{1}").replace('@', &sandbox.canary("path")).replace('\u{1}', "/@");
    let result = probe(&sandbox, &program);
    result.ok().says("END");
    only_open_paths(internet, &sandbox, &result);
    // Through the route that is not read, plain HTTP is read all the same: a host and a framing, any path.
    let program = "
for more in (b'Host: other.test', b'Transfer-Encoding: chunked\\r\\nContent-Length: 5', b'X: y\\r\\n Host: other.test', b'X: y\\nHost: other.test', b'X: y\\rHost: other.test', b'Content-Length: 1\\r\\nContent-Length: 2'):
    tell(f'field {more}', exchange(('plain.test', 80), get(b'/open/@', b'plain.test', more), patience=3))
print('END')";
    let result = probe(&sandbox, program);
    result.ok().says("END");
    only_open_paths(internet, &sandbox, &result);
    let control =
        "for host in ('read.test', 'plain.test'): tell('control', exchange((host, 80), get(b'/open/x', host.encode())))";
    assert_eq!(probe(&sandbox, control).ok().out().matches("REACHED").count(), 2);
    let control = "tell('control', exchange(('read.test', 80), get(b'/closed', b'read.test')))";
    sandbox.plain_python(&sandbox.probe(control)).ok().says("REACHED control");
}

#[test]
fn streams_that_become_other_requests_in_the_older_protocol() {
    let Some(internet) = Internet::here() else { return };
    let Some(sandbox) = internet.with_http_packages(&[READ]) else { return };
    let program = "
sys.path.insert(0, './packages')
import h2.connection, h2.config, h2.events
def stream(name, fields, body=b'', trailers=None):
    config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False, header_encoding=None, validate_inbound_headers=False)
    connection, answer = h2.connection.H2Connection(config), b''
    tls = context(); tls.set_alpn_protocols(['h2'])
    try:
        sock = tls.wrap_socket(socket.create_connection(('read.test', 443), 10), server_hostname='read.test'); sock.settimeout(3)
        assert sock.selected_alpn_protocol() == 'h2'
        connection.initiate_connection()
        connection.send_headers(1, fields, end_stream=not body and not trailers)
        if body: connection.send_data(1, body, end_stream=not trailers)
        if trailers: connection.send_headers(1, trailers, end_stream=True)
        sock.sendall(connection.data_to_send())
        ended = False
        while not ended and (data := sock.recv(65536)):
            for event in connection.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived): answer += b'%s ' % dict(event.headers)[b':status']
                if isinstance(event, h2.events.DataReceived): answer += event.data
                ended = ended or isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset, h2.events.ConnectionTerminated))
            sock.sendall(connection.data_to_send())
    except (OSError, AssertionError, h2.exceptions.H2Error) as error: answer += f'({error!r})'.encode()
    tell(name, answer)
def head(method=b'GET', path=b'/open/x', authority=b'read.test', scheme=b'https', *more):
    return [(b':method', method), (b':scheme', scheme), (b':authority', authority), (b':path', path), *more]
usual = (b'GET', b'/open/x', b'read.test', b'https')
stream('honest', head())
stream('honest post', head(b'POST'), b'body')
inner = b'GET /@/hidden HTTP/1.1\\r\\nHost: read.test\\r\\n\\r\\n'
for path in (b'/open/x HTTP/1.1\\r\\nHost: read.test\\r\\n\\r\\n' + inner, b'/open/x\\r\\n\\r\\n' + inner, b'/open/x\\n' + inner, b'/open/x /@', b'*', b'', b'@', b'open/@', b'http://other.test/@', b'//other.test/@', b'/open/../@', b'/@#/open/', b'/open/\\0/@'):
    stream(f'path {path}', head(path=path))
for method in (b'GET /@ HTTP/1.1\\r\\nX:', b'GET\\r\\n', b'get', b'', b'PUT', b'TRACE'):
    stream(f'method {method}', head(method, b'/@/method'))
for authority in (b'other.test', b'read.test\\r\\nX: y', b'read.test:8443', b'x@read.test', b'read.test/@', b'', b'read.test, other.test', b'127.0.0.1'):
    stream(f'authority {authority}', head(b'GET', b'/open/@', authority))
for scheme in (b'http', b'ftp', b'https://other.test/@?', b'', b'https\\r\\n'):
    stream(f'scheme {scheme}', head(scheme=scheme))
for field in ((b'x', b'y\\r\\nGET /@ HTTP/1.1\\r\\nHost: read.test\\r\\n\\r\\n'), (b'x\\r\\ny', b'z'), (b'x: y\\r\\nz', b'z'), (b'x', b'y\\0'), (b'', b'y'), (b'X', b'y'), (b'host', b'other.test'), (b'connection', b'upgrade'), (b'transfer-encoding', b'chunked'),
              (b'content-length', b'0'), (b'content-length', b'4, 5'), (b'content-length', b'-1'), (b'upgrade', b'websocket'), (b'te', b'chunked'), (b':authority', b'other.test'), (b':path', b'/@'), (b':unknown', b'x'), (b' transfer-encoding', b'chunked'), (b'expect', b'100-continue'), (b'proxy-connection', b'x')):
    stream(f'field {field}', head(b'POST', b'/open/@', b'read.test', b'https', field), b'0\\r\\n\\r\\n' + inner)
stream('two lengths', head(b'POST', b'/open/@', b'read.test', b'https', (b'content-length', b'0'), (b'content-length', b'%d' % len(inner))), inner)
stream('no authority', [(b':method', b'GET'), (b':scheme', b'https'), (b':path', b'/open/@'), (b'host', b'other.test')])
stream('pseudo late', [(b':method', b'GET'), (b':scheme', b'https'), (b'x', b'y'), (b':authority', b'read.test'), (b':path', b'/@')])
stream('trailers', head(b'POST', b'/open/@'), b'x', [(b':path', b'/@'), (b'host', b'other.test'), (b'content-length', b'5')])
stream('connect', [(b':method', b'CONNECT'), (b':authority', b'other.test:80')], get(b'/@', b'other.test'))
stream('extended connect', [(b':method', b'CONNECT'), (b':protocol', b'websocket'), (b':scheme', b'https'), (b':authority', b'read.test'), (b':path', b'/@')])
print('END')";
    let result = probe(&sandbox, program);
    result.ok().says("END").says("REACHED honest ").says("REACHED honest post");
    only_open_paths(internet, &sandbox, &result);
    assert!(!internet.seen(&sandbox.canary("path")).is_empty(), "positive control\n{}", result.report());
}
